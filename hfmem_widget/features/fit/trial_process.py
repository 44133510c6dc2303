"""The process that makes real steps: it reads a document from stdin, and writes the answer to stdout."""

import ctypes
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.setting import errors_as


def main() -> None:
    """Answer one document with one line."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it dies with its parent
        # Where the host's memory runs out, this process is killed before the user's.
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # so that what others print is not in the answer
        try:
            with errors_as("the real step failed"):
                from hfmem_widget.features.fit.trial import tried

                answer = tried(json.load(sys.stdin))
        except OptionError as error:
            answer = {"error": str(error)}
        answers.write(json.dumps(answer))


if __name__ == "__main__":
    main()
