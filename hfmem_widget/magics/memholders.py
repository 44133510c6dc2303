"""``%memholders``: what still holds the memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments

from hfmem_widget.errors import OptionError
from hfmem_widget.history import History
from hfmem_widget.labels import plain
from hfmem_widget.magics.report import ReportMagics
from hfmem_widget.units import parse_bytes

if TYPE_CHECKING:
    from hfmem_widget.holding import Holders

NOTHING_EARLIER = (
    "--since says what holds more than at the last %memholders of the same --device; there was none"
)


@magics_class
class MemholdersMagics(ReportMagics):
    """Tells which names keep which memory."""

    name = "memholders"
    options = ("--device", "--least", "--detail", "--since")

    def __init__(self, shell: InteractiveShell, history: History) -> None:
        super().__init__(shell, history)
        self._latest: dict[str, Holders] = {}

    @magic_arguments("memholders")
    @argument("-d", "--device", default="", help="Only this device, such as cuda:0. Default: all.")
    @argument(
        "-l",
        "--least",
        default="1MiB",
        metavar="SIZE",
        help="What holds less is told in one line. Default: %(default)s.",
    )
    @argument(
        "--detail", action="store_true", help="Also the biggest parts within what a name holds."
    )
    @argument(
        "--since",
        action="store_true",
        help="What holds more than when %%memholders was last asked, with the same --device.",
    )
    @no_var_expand
    @line_magic("memholders")  # type: ignore[arg-type]  # no_var_expand is typed for a callable of Never
    def memholders(self, line: str) -> None:
        """Say what still holds the memory: variables, outputs, errors, closures, graphs.

        ::

            %memholders

        lists the names that keep tensors, biggest first, with the path to them: ``losses[0..99]`` and the
        autograd graphs behind it, ``Out[12]``, ``the error of cell [7] → train() → activations``. Each byte
        is counted once, under the name to blame first; other names that reach it stand below as "also".
        What is allocated and no name explains is the last row. ``--since`` tells what holds more than when
        it was asked before.

        It looks when you ask, runs no code of your objects, frees nothing and keeps nothing alive.
        ``hfmem_widget.holders()`` is the same for your own code.
        """
        arguments = self.parse(line)
        least = _bytes_in(arguments.least)
        from hfmem_widget.held import holders
        from hfmem_widget.view.growth import growth_bundle
        from hfmem_widget.view.holders import holders_bundle
        from hfmem_widget.view.screen import Screen

        try:
            found = holders(self._shell.user_ns, device=arguments.device)
        except OptionError as error:
            raise UsageError(str(error)) from None
        earlier = self._latest.get(arguments.device)
        self._latest[arguments.device] = found
        if not arguments.since:
            bundle = holders_bundle(found, least=least, detail=arguments.detail)
        elif earlier is None:
            raise UsageError(NOTHING_EARLIER)
        else:
            bundle = growth_bundle(found.since(earlier), least=least)
        Screen(self._shell).show(bundle)


def _bytes_in(text: str) -> float:
    size = parse_bytes(text)
    if math.isnan(size):
        message = f"--least is a size such as 1MiB, 500KiB or 2GiB, not {plain(text)!r}"
        raise UsageError(message)
    return size
