"""What the line magics that show something on demand have in common."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ClassVar, TypeVar

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_magic
from IPython.core.magic_arguments import magic_arguments

from hfmem_widget.analysis.history import History
from hfmem_widget.magics.usage import asks_for_help, parse, usage_errors, words_of


class ReportMagics(Magics):
    """One line magic: parse, ask, show.

    Parameters
    ----------
    shell : InteractiveShell
    history : History
        The cells that were watched.
    """

    name: ClassVar[str]
    """What follows the % sign; the method has this name, too."""

    words: ClassVar[tuple[str, ...]] = ()
    """What the Tab key offers besides the options."""

    def __init__(self, shell: InteractiveShell, history: History) -> None:
        super().__init__(shell)
        self._shell = shell
        self.history = history

    def show(self, bundle: Mapping[str, Any]) -> None:
        """Show texts by MIME type below the cell."""
        from hfmem_widget.view.screen import Screen

        Screen(self._shell).show(bundle)


Report = TypeVar("Report", bound=ReportMagics)


def report(action: Callable[[Report, Namespace], None]) -> Callable[[Report, str], None]:
    """Make a line magic of a method that takes parsed arguments; an OptionError is shown in one line."""

    @wraps(action)
    def magic(self: Report, line: str) -> None:
        words = words_of(line)
        if asks_for_help(words):
            print(parser.format_help())  # noqa: T201
            return
        with usage_errors():
            action(self, parse(parser, words))

    made: Any = magic_arguments()(magic)
    parser = made.parser
    return line_magic(made)  # type: ignore[return-value]  # it is typed for a callable of Never
