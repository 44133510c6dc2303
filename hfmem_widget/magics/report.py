"""What the line magics have in common that tell something on demand."""

from __future__ import annotations

from argparse import Namespace
from typing import Any, ClassVar

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics

from hfmem_widget.history import History
from hfmem_widget.magics.usage import words_of


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

    options: ClassVar[tuple[str, ...]] = ()
    """What the Tab key offers."""

    def __init__(self, shell: InteractiveShell, history: History) -> None:
        super().__init__(shell)
        self._shell = shell
        self._history = history

    def parse(self, line: str) -> Namespace:
        """Return the arguments of a line.

        Raises
        ------
        UsageError
            If they are not what the magic takes; the message says what it does.
        """
        arguments: Namespace = getattr(self, self.name).parser.parse_args(words_of(line))
        return arguments


def add(report: ReportMagics, shell: InteractiveShell) -> None:
    """Add a magic to a shell, with its completion."""
    shell.register_magics(report)
    options = list(report.options)

    def complete(_shell: InteractiveShell, _event: Any) -> list[str]:
        return options

    shell.set_hook("complete_command", complete, str_key=f"%{report.name}")


def remove(report: type[ReportMagics], shell: InteractiveShell) -> None:
    """Take a magic back."""
    manager = shell.magics_manager
    manager.registry.pop(report.__name__, None)
    manager.magics["line"].pop(report.name, None)
    completers = shell.strdispatchers.get("complete_command")
    if completers is not None:
        completers.strs.pop(f"%{report.name}", None)
