"""``%memfit``: what a model will need, and whether that fits here, before it is loaded."""

from __future__ import annotations

from argparse import Namespace
from functools import reduce

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument

from hfmem_widget.features.fit.setting import Setting
from hfmem_widget.magics.report import OptionFlags, ReportMagics, output, report
from hfmem_widget.options import options_of

SETTING = options_of(Setting)


class MemfitMagics(ReportMagics):
    """Forecasts."""

    name = "memfit"

    @report
    @argument(
        "model",
        help="A variable that holds a model or a configuration, a folder or JSON file with one, or the name "
        "of a model in the local cache. Nothing is downloaded.",
    )
    @argument(
        "--train",
        "--training",
        action="store_true",
        help="Forecast a training step. This is the default.",
    )
    @OptionFlags(SETTING)
    @argument(
        "--longest",
        action="store_true",
        help="Look for the longest rows that fit at this batch, by further dry runs.",
    )
    @argument(
        "--try",
        dest="attempt",
        action="store_true",
        help="Make one real step of this size with random weights, and give the memory back.",
    )
    @argument(
        "--headroom",
        type=float,
        default=0.10,
        help="Share of the free memory to leave unused. Default: %(default)s.",
    )
    @output("forecast")
    def memfit(self, arguments: Namespace) -> None:
        """Forecast the memory of a model, part by part, and whether it fits here. Nothing is loaded.

        ::

            %memfit ./bert-large --batch 16 --length 512 --precision bf16
            %memfit config --lora 16,q_proj,v_proj --quantized nf4
            %memfit model --inference --batch 8 --length 2048

        runs one step of the model on PyTorch's meta device, where tensors have shapes but no memory.
        """
        given = vars(arguments)
        if arguments.train and "training" in given:
            raise UsageError("use --train or --inference, not both")
        from hfmem_widget.features.fit.api import fit
        from hfmem_widget.features.fit.html import fit_bundle

        names = {*SETTING, "longest", "attempt", "headroom"} & given.keys()
        fitted = fit(self._named(arguments.model), **{name: given[name] for name in names})
        self.show(fit_bundle(fitted))
        self.keep(arguments, fitted)

    def _named(self, model: str) -> object:
        """Return what the user calls so, such as ``model`` or ``trainer.model``; else the name."""
        first, *others = model.split(".")
        if first not in self._shell.user_ns:
            return model
        try:
            return reduce(getattr, others, self._shell.user_ns[first])
        except AttributeError:
            return model
