"""``python -m hfmem_widget`` is the command ``hfmem``."""

import sys

from hfmem_widget.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
