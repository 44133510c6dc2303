"""What the line magics have in common that tell something on demand."""

from __future__ import annotations

from argparse import Namespace
from typing import ClassVar

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics

from hfmem_widget.analysis.history import History
from hfmem_widget.magics.usage import asks_for_help, parse, words_of


class ReportMagics(Magics):
    """One line magic: parse, ask, show.

    Parameters
    ----------
    shell : InteractiveShell
    history : History
        The cells that were watched.
    """

    name: ClassVar[str]
    """What follows the % sign; the method is called the same."""

    words: ClassVar[tuple[str, ...]] = ()
    """What the Tab key offers besides the options."""

    def __init__(self, shell: InteractiveShell, history: History) -> None:
        super().__init__(shell)
        self._shell = shell
        self._history = history

    def parse(self, line: str) -> Namespace | None:
        """Return the arguments of a line; None where it asks for the manual, which is then shown.

        Raises
        ------
        UsageError
            If they are not what the magic takes; the message says what it does.
        """
        parser, words = getattr(self, self.name).parser, words_of(line)
        if asks_for_help(words):
            print(parser.format_help())  # noqa: T201
            return None
        return parse(parser, words)


def remove(report: type[ReportMagics], shell: InteractiveShell) -> None:
    """Take a magic back."""
    manager = shell.magics_manager
    manager.registry.pop(report.__name__, None)
    manager.magics["line"].pop(report.name, None)
