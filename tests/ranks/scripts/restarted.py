"""A script that follows itself, and of which rank 1 fails at the first attempt."""

import os
import sys
import time

import hfmem_widget

hfmem_widget.follow(sys.argv[1])
with hfmem_widget.span("step"):
    time.sleep(0.5)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
    raise RuntimeError("at the first attempt")
time.sleep(0.5)
