#!/bin/sh
# Prints a Python >= 3.11 that can make virtual environments; $1, if given, is the only candidate.
for python in ${1:-python3 python3.13 python3.12 python3.11 python3.14 python}; do
    if "$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        command -v "$python"
        exit
    fi
done
cat >&2 <<END
No Python 3.11 or newer with the venv module was found${1:+ at $1}.
Install one, which needs an administrator's rights (Debian, Ubuntu: apt-get install python3 python3-venv),
or name one you have: make PYTHON=/path/to/python3.11
END
exit 1
