"""``%memcompare``: watched cells of the notebook side by side."""

from __future__ import annotations

import keyword

from IPython.core.error import UsageError
from IPython.core.magic import line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments

from hfmem_widget.errors import OptionError
from hfmem_widget.history import HOW_TO_WATCH, History
from hfmem_widget.magics.report import ReportMagics


@magics_class
class MemcompareMagics(ReportMagics):
    """Compares what was watched."""

    name = "memcompare"
    options = ("--by", "--device", "--baseline", "--output")

    @property
    def history(self) -> History:
        """The cells that were watched; for `hfmem_widget.compare`."""
        return self._history

    @magic_arguments("memcompare")
    @argument(
        "names",
        nargs="*",
        help="Labels of watched cells, of which all runs are taken, or numbers of cells. "
        "Without any: what there is.",
    )
    @argument(
        "--by",
        default="",
        metavar="{step,time}",
        help="What to align the chart by. Default: steps where every cell has some.",
    )
    @argument(
        "-d", "--device", default="", help="Which device. Default: the one that most cells used."
    )
    @argument(
        "-b",
        "--baseline",
        default="",
        help="What the others are compared with. Default: the first.",
    )
    @argument(
        "-o", "--output", default="", metavar="NAME", help="Keep the comparison in this variable."
    )
    @no_var_expand
    @line_magic("memcompare")  # type: ignore[arg-type]  # no_var_expand is typed for a callable of Never
    def memcompare(self, line: str) -> None:
        """Lay watched cells side by side.

        ::

            %%memwatch --label base
            trainer.train()

            %%memwatch --label "with checkpointing"
            trainer.train()

            %memcompare base "with checkpointing"

        shows their peaks, what was in them, what they left behind and how quick they were, each with its
        difference to the first. A cell that was run several times stands there with the median and the range
        of its runs.

        ``%memcompare`` alone lists the watched cells.
        """
        arguments = self.parse(line)
        keep = arguments.output
        if keep and (not keep.isidentifier() or keyword.iskeyword(keep)):
            message = f"--output is the name of a variable, not {keep!r}"
            raise UsageError(message)
        if not arguments.names:
            self._list()
            return
        from hfmem_widget.comparing import compare_named
        from hfmem_widget.view.comparison import chart_bundle, table_bundle
        from hfmem_widget.view.screen import Screen

        try:
            comparison = compare_named(
                self._history,
                arguments.names,
                by=arguments.by,
                device=arguments.device,
                baseline=arguments.baseline,
            )
        except OptionError as error:
            raise UsageError(str(error)) from None
        screen = Screen(self._shell)
        screen.show(table_bundle(comparison))
        screen.show(chart_bundle(comparison))
        if keep:
            self._shell.user_ns[keep] = comparison

    def _list(self) -> None:
        records = self._history.records
        if not records:
            raise UsageError(HOW_TO_WATCH)
        from hfmem_widget.view.comparison import list_bundle
        from hfmem_widget.view.screen import Screen

        Screen(self._shell).show(list_bundle(records))
