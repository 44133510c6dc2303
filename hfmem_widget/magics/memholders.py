"""``%memholders``: what still holds the memory."""

from __future__ import annotations

import math

from IPython.core.error import UsageError
from IPython.core.magic import line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments

from hfmem_widget.errors import OptionError
from hfmem_widget.labels import plain
from hfmem_widget.magics.report import ReportMagics
from hfmem_widget.units import parse_bytes


@magics_class
class MemholdersMagics(ReportMagics):
    """Tells which names keep which memory."""

    name = "memholders"
    options = ("--device", "--least", "--detail")

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
    @no_var_expand
    @line_magic("memholders")  # type: ignore[arg-type]  # no_var_expand is typed for a callable of Never
    def memholders(self, line: str) -> None:
        """Say what still holds the memory: variables, outputs, errors, closures, graphs.

        ::

            %memholders

        lists the names that keep tensors, biggest first, with the path to them: ``losses[0..99]`` and the
        autograd graphs behind it, ``Out[12]``, ``the error of cell [7] → train() → activations``. Each byte
        is counted once, under the name to blame first; other names that reach it stand below as "also".
        What is allocated and no name explains is the last row.

        It looks when you ask, runs no code of your objects, frees nothing and keeps nothing alive.
        ``hfmem_widget.holders()`` is the same for your own code.
        """
        arguments = self.parse(line)
        least = _bytes_in(arguments.least)
        from hfmem_widget.held import holders
        from hfmem_widget.view.holders import holders_bundle
        from hfmem_widget.view.screen import Screen

        try:
            found = holders(self._shell.user_ns, device=arguments.device)
        except OptionError as error:
            raise UsageError(str(error)) from None
        Screen(self._shell).show(holders_bundle(found, least=least, detail=arguments.detail))


def _bytes_in(text: str) -> float:
    size = parse_bytes(text)
    if math.isnan(size):
        message = f"--least is a size such as 1MiB, 500KiB or 2GiB, not {plain(text)!r}"
        raise UsageError(message)
    return size
