"""The process that makes real steps: it reads a document on stdin, and writes what they took on stdout."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.setting import foreign

_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def main() -> None:
    """Answer one document with one line."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
        # Where the host's memory runs out, this ends before the user's process.
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # what others print is no answer
        try:
            with foreign("the real step failed"):
                from hfmem_widget.features.fit.trial import tried

                answer = tried(json.load(sys.stdin))
        except OptionError as error:
            answer = {"error": str(error)}
        answers.write(json.dumps(answer))


if __name__ == "__main__":
    main()
