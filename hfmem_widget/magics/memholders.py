"""``%memholders``: what still holds the memory."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic_arguments import argument

from hfmem_widget.magics.report import ReportMagics, report
from hfmem_widget.text import parse_bytes

if TYPE_CHECKING:
    from hfmem_widget.sources.heap.model import Holders


class MemholdersMagics(ReportMagics):
    """Shows which variables hold which memory."""

    name = "memholders"

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self._latest: dict[str, Holders] = {}

    @report
    @argument("-d", "--device", default="", help="Only this device, such as cuda:0. Default: all.")
    @argument(
        "-l",
        "--least",
        default="1MiB",
        metavar="SIZE",
        help="Combine everything smaller than this in one line. Default: %(default)s.",
    )
    @argument(
        "--detail", action="store_true", help="Also show the largest parts of what each name holds."
    )
    @argument(
        "--since",
        action="store_true",
        help="Show what has grown since the last %%memholders with the same --device.",
    )
    def memholders(self, arguments: Namespace) -> None:
        """Show what still holds memory: variables, outputs, errors, closures, graphs.

        ::

            %memholders

        lists the names that hold tensors, arrays or data frames, largest first, with their paths:
        ``losses[0..99]`` and the autograd graphs behind it, ``Out[12]``, ``the error of cell [7] → train() →
        activations``. Each byte counts once, for the most likely culprit; other names that reach it are
        listed as "also". The last row is allocated memory that no name explains. ``--since`` shows what has
        grown since the last %memholders.

        It searches only when you run it, runs no code of your objects, frees nothing and holds no object.
        In code, use ``hfmem_widget.holders()``.
        """
        from hfmem_widget.features.holders.api import holders
        from hfmem_widget.features.holders.html import growth_bundle, holders_bundle

        least = parse_bytes(arguments.least, of="--least")
        current = holders(self._shell.user_ns, device=arguments.device)
        earlier = self._latest.get(arguments.device)
        self._latest[arguments.device] = current
        if not arguments.since:
            self.show(holders_bundle(current, least=least, detail=arguments.detail))
        elif earlier is not None:
            self.show(growth_bundle(current.since(earlier), least=least))
        else:
            raise UsageError(
                "--since needs an earlier %memholders of the same --device to compare with; this run is "
                "stored for the next one"
            )
