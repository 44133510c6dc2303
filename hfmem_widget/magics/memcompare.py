"""``%memcompare``: watched cells of the notebook side by side."""

from __future__ import annotations

from argparse import Namespace

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument

from hfmem_widget.analysis.history import HOW_TO_WATCH
from hfmem_widget.magics.report import ReportMagics, output, report


class MemcompareMagics(ReportMagics):
    """Compares watched cells."""

    name = "memcompare"

    @report
    @argument(
        "names",
        nargs="*",
        help="Labels of watched cells (a label means all of its runs), or cell numbers. "
        "Without: list the watched cells.",
    )
    @argument(
        "--by",
        default="",
        metavar="{step,time}",
        help="How to align the chart. Default: by step, if every cell has steps.",
    )
    @argument(
        "-d", "--device", default="", help="Which device. Default: the one used by the most cells."
    )
    @argument(
        "-b",
        "--baseline",
        default="",
        help="The cell that the others are compared with. Default: the first.",
    )
    @output("comparison")
    def memcompare(self, arguments: Namespace) -> None:
        """Compare watched cells side by side.

        ::

            %%memwatch --label base
            trainer.train()

            %%memwatch --label "with checkpointing"
            trainer.train()

            %memcompare base "with checkpointing"

        shows their peaks with all parts, what they left behind and how fast they were, each with its
        difference to the first. A cell that ran several times is shown with the median and the range of its
        runs.

        ``%memcompare`` alone lists the watched cells.
        """
        from hfmem_widget.features.compare.api import compare_named
        from hfmem_widget.features.compare.html import chart_bundle, table_bundle
        from hfmem_widget.features.history.html import history_bundle
        from hfmem_widget.features.history.keep import KEPT_HISTORY

        if not arguments.names:
            history = KEPT_HISTORY.table()
            if not history.runs:
                raise UsageError(HOW_TO_WATCH)
            self.show(history_bundle(history))
            print("Run %memcompare LABEL LABEL to compare; cell numbers work too.")  # noqa: T201
            return
        comparison = compare_named(
            arguments.names,
            by=arguments.by,
            device=arguments.device,
            baseline=arguments.baseline,
        )
        self.show(table_bundle(comparison))
        self.show(chart_bundle(comparison))
        self.keep(arguments, comparison)
