"""``%memcompare``: watched cells of the notebook side by side."""

from __future__ import annotations

from IPython.core.error import UsageError
from IPython.core.magic import line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments

from hfmem_widget.analysis.history import HOW_TO_WATCH, History
from hfmem_widget.magics.report import ReportMagics
from hfmem_widget.magics.usage import check_output, usage_errors


@magics_class
class MemcompareMagics(ReportMagics):
    """Compares watched cells."""

    name = "memcompare"

    @property
    def history(self) -> History:
        """The cells that were watched; for `hfmem_widget.compare`."""
        return self._history

    @magic_arguments("memcompare")
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
    @argument(
        "-o", "--output", default="", metavar="NAME", help="Keep the comparison in this variable."
    )
    @line_magic("memcompare")  # type: ignore[arg-type]  # it is typed for a callable of Never
    def memcompare(self, line: str) -> None:
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
        arguments = self.parse(line)
        if arguments is None:
            return
        check_output(arguments.output, self._shell)
        if not arguments.names:
            self._list()
            return
        from hfmem_widget.features.compare.api import compare_named
        from hfmem_widget.features.compare.html import chart_bundle, table_bundle
        from hfmem_widget.view.screen import Screen

        with usage_errors():
            comparison = compare_named(
                self._history,
                arguments.names,
                by=arguments.by,
                device=arguments.device,
                baseline=arguments.baseline,
            )
        screen = Screen(self._shell)
        screen.show(table_bundle(comparison))
        screen.show(chart_bundle(comparison))
        if arguments.output:
            self._shell.user_ns[arguments.output] = comparison

    def _list(self) -> None:
        records = self._history.records
        if not records:
            raise UsageError(HOW_TO_WATCH)
        from hfmem_widget.features.compare.html import list_bundle
        from hfmem_widget.view.screen import Screen

        Screen(self._shell).show(list_bundle(records))
