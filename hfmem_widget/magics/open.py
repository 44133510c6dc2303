"""``%memwatch open``: a recording, or a run that goes on elsewhere."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic_arguments import MagicArgumentParser

if TYPE_CHECKING:
    from hfmem_widget.ranks.run import Run
    from hfmem_widget.session import Session


def open_parser(command: str) -> ArgumentParser:
    """Return what reads the words after the command."""
    parser = MagicArgumentParser(command, add_help=False)
    parser.add_argument("path", nargs="?", default="", metavar="PATH")
    parser.add_argument("-o", "--output", default="", metavar="NAME")
    return parser


def open_recording(path: str, shell: InteractiveShell) -> tuple[Session | Run, Session]:
    """Show what is at a path, and return it, and its session: of a run that of all ranks.

    Raises `OptionError` if there is none, or it is no recording.
    """
    from hfmem_widget.ranks.run import open as open_path
    from hfmem_widget.session import Session
    from hfmem_widget.view.live import RunView
    from hfmem_widget.view.screen import Screen
    from hfmem_widget.view.session import still_bundles

    if not path:
        raise UsageError("name a recording, such as: %memwatch open run.hfmem.jsonl")
    opened = open_path(path)
    screen = Screen(shell)
    if isinstance(opened, Session):
        session = opened
    else:
        session = opened.overview
        if opened.running and screen.live:
            RunView(opened.recorder, screen, kept=opened).begin()
            return opened, session
    bundles = list(still_bundles(session))
    for bundle in bundles if screen.live else bundles[:1]:
        screen.show(bundle)
    return opened, session
