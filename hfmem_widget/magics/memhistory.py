"""``%memhistory``: every watched cell of the notebook so far."""

from __future__ import annotations

from argparse import Namespace

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument

from hfmem_widget.analysis.history import HISTORY, HOW_TO_WATCH
from hfmem_widget.magics.report import ReportMagics, output, report
from hfmem_widget.text import format_counted, plain


class MemhistoryMagics(ReportMagics):
    """Lists what was watched."""

    name = "memhistory"

    @report
    @argument(
        "--sort",
        default="cell",
        metavar="{cell,peak,left,time}",
        help="Order the cells as they ran last, or by the newest run's peak, by what it left behind or by "
        "its duration, highest first. Default: cell.",
    )
    @argument("--last", type=int, metavar="N", help="Only the N cells that ran last.")
    @argument("--runs", action="store_true", help="Every run in a row of its own.")
    @argument("--csv", default="", metavar="PATH", help="Write the table to a new .csv file.")
    @argument(
        "--keep",
        default="",
        metavar="PATH",
        help="From now on, add a line for each run to this file, and show the runs of earlier kernels that "
        "are in it.",
    )
    @argument("--clear", action="store_true", help="Forget all runs. Files stay as they are.")
    @output("history")
    def memhistory(self, arguments: Namespace) -> None:
        """List every watched cell, block and training so far.

        ::

            %memhistory

        has a row for each cell with its duration, its peak, what it left behind, and what was found.
        The runs of a cell that was run again stand together, with how its peak and what it left behind moved
        from run to run: memory that leaks from run to run shows there.

        The history ends with the kernel, unless ``--keep PATH`` names a file for it.
        In code, use ``hfmem_widget.history()``.
        """
        from hfmem_widget.features.history.html import history_bundle
        from hfmem_widget.features.history.keep import KEPT_HISTORY

        options = {"sort": arguments.sort, "last": arguments.last, "each_run": arguments.runs}
        table = KEPT_HISTORY.table(**options)  # checked before anything is done
        if arguments.clear:
            HISTORY.clear()
            print("The history is empty now. Files were left as they are.")  # noqa: T201
            return
        if arguments.keep:
            KEPT_HISTORY.keep(arguments.keep)
            table = KEPT_HISTORY.table(**options)
        if not table.runs and not arguments.keep:
            raise UsageError(HOW_TO_WATCH)
        self.keep(arguments, table)
        if arguments.csv:
            path = table.save(arguments.csv)
            runs = format_counted(len(table.runs), "run")
            print(f"{runs} written to {plain(path)}.")  # noqa: T201
            return
        self.show(history_bundle(table))
