#!/bin/sh
# Prints a Chromium or Chrome for the browser tests; root on Debian or Ubuntu installs one if there is none.
if [ -n "${HFMEM_CHROMIUM:-}" ]; then
    command -v "$HFMEM_CHROMIUM" && exit
    echo "HFMEM_CHROMIUM is $HFMEM_CHROMIUM, which cannot be run." >&2
    exit 1
fi

find_one() {
    for browser in chromium chromium-browser google-chrome; do
        # Ubuntu's chromium-browser may be a stub that only asks for a snap.
        "$browser" --version >/dev/null 2>&1 && command -v "$browser" && return
    done
    return 1
}

find_one && exit
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing Chromium for the browser tests (apt-get install chromium) ..." >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >&2 && apt-get install -y -qq --no-install-recommends chromium >&2 </dev/null
    find_one && exit
fi
cat >&2 <<END
The browser tests need Chromium or Google Chrome, and none was found.
Install one, which needs an administrator's rights (Debian: sudo apt-get install chromium),
or name one you have: make test HFMEM_CHROMIUM=/path/to/chrome
END
exit 1
