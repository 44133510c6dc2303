"""``hfmem run -- COMMAND``: a command whose ranks are followed, or a notebook."""

import os
import shlex
import shutil
import signal
import tempfile
from argparse import Namespace
from pathlib import Path

from hfmem_widget.cli.output import remark
from hfmem_widget.display import resolve
from hfmem_widget.errors import HFMemError, OptionError
from hfmem_widget.options import expanded
from hfmem_widget.ranks.directory import make_or_join
from hfmem_widget.ranks.environment import CLAIMED, PATH, RUN, SITE, SOLO, with_site
from hfmem_widget.text import plain, readable


def run(arguments: Namespace) -> int:
    """Become the command, whose output, exit code and signals are its own; or run a notebook."""
    if arguments.words[0].endswith(".ipynb"):
        return int(resolve("hfmem_widget.cli.notebook:run_notebook")(arguments))
    of_notebooks = "baseline", "fail_over", "kernel", "timeout", "json"
    if refused := [each for each in of_notebooks if getattr(arguments, each)]:
        names = ", ".join(f"--{each.replace('_', '-')}" for each in refused)
        raise OptionError(f"only a notebook (.ipynb) takes {names}")
    # Within a watched cell the run is the cell's.
    given = arguments.dir or os.environ.get(RUN, "")
    directory = expanded(given) if given else Path(tempfile.mkdtemp(prefix="hfmem-"))
    make_or_join(directory, arguments.label)
    shown = plain(shlex.quote(os.fspath(directory)), 4096)
    remark(f"The ranks are recorded in {shown}")
    remark(f"  in a terminal: hfmem watch {shown}")
    remark(f"  in a notebook: %memwatch open {shown}")
    path = os.environ.get(PATH)
    if SITE not in (path or "").split(os.pathsep):
        path = with_site(path)
    environ = {**os.environ, RUN: os.fspath(directory), PATH: path or "", SOLO: "1"}
    environ.pop(CLAIMED, None)  # a rank that asks for it starts a run of its own
    command = arguments.words[0]
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, and then by what it becomes
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvpe(command, arguments.words, environ)  # noqa: S606  (what the user has typed)
    except OSError as error:
        if not given:
            shutil.rmtree(directory, ignore_errors=True)
        raise HFMemError(f"{plain(command)} cannot be started: {readable(error)}") from None
