"""``%memwatch open``: a recording, a snapshot, a run that goes on; ``%memwatch ranks``: engines as ranks."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic_arguments import MagicArgumentParser

from hfmem_widget.magics.usage import usage_errors
from hfmem_widget.text import format_counted, plain

if TYPE_CHECKING:
    from hfmem_widget.session import Session


USAGE = "name a client of ipyparallel, such as: %memwatch ranks rc; or %memwatch ranks off"


def open_parser(command: str) -> ArgumentParser:
    """Return the parser of the words after the command."""
    parser = MagicArgumentParser(command, add_help=False)
    parser.add_argument("path", nargs="?", default="", metavar="PATH")
    parser.add_argument("-o", "--output", default="", metavar="NAME")
    return parser


def open_recording(path: str, shell: InteractiveShell) -> tuple[Any, Session | None]:
    """Show and return the object at a path, and its session, if any; `OptionError` if it is unreadable."""
    from hfmem_widget.ranks.run import open as open_path
    from hfmem_widget.session import Session
    from hfmem_widget.session.stacks import Snapshot
    from hfmem_widget.view.card import still_bundles
    from hfmem_widget.view.live import RunView
    from hfmem_widget.view.screen import Screen

    if not path:
        raise UsageError("name a recording, such as: %memwatch open run.hfmem.jsonl")
    opened = open_path(path)
    screen = Screen(shell)
    if isinstance(opened, Session):
        session = opened
    elif isinstance(opened, Snapshot):
        screen.show(opened._repr_mimebundle_())
        return opened, None
    else:
        session = opened.overview
        if opened.running and screen.live:
            RunView(opened.recorder, screen, opened).begin()
            return opened, session
    bundles = list(still_bundles(session))
    for bundle in bundles if screen.live else bundles[:1]:
        screen.show(bundle)
    return opened, session


@usage_errors()
def take_engines(words: Sequence[str], names: Mapping[str, Any]) -> str:
    """Follow the words after ``%memwatch ranks``, and return the sentence to print."""
    from hfmem_widget.features.ranks.companion import client_in_use, take

    if words == ["off"]:
        had = client_in_use() is not None
        take(None)
        return (
            "The engines are no longer shown as ranks." if had else "No engines are shown as ranks."
        )
    if len(words) != 1:
        raise UsageError(USAGE)
    name = words[0]
    if name not in names:
        raise UsageError(f"no variable {plain(name)!r}; {USAGE}")
    count = format_counted(take(names[name]), "engine")
    return f"{count} of {plain(name)} will be shown as ranks of every watched cell."
