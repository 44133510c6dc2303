"""``%memfit``: what a model will need, and whether that fits here, before it is loaded."""

from __future__ import annotations

from argparse import Namespace
from functools import reduce

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument

from hfmem_widget.errors import OptionError
from hfmem_widget.magics.report import ReportMagics, output, report
from hfmem_widget.text import plain

_AS_GIVEN = (
    *("batch", "length", "optimizer", "checkpointing", "accumulation", "quantized", "image", "kv"),
    *("shards", "longest", "attempt", "headroom"),
)
"""Arguments that are those of `fit`."""


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
    @argument("--inference", action="store_true", help="Forecast a forward pass and its KV cache.")
    @argument("-b", "--batch", type=int, default=1, help="Rows per batch. Default: %(default)s.")
    @argument("-l", "--length", type=int, default=512, help="Tokens per row. Default: %(default)s.")
    @argument(
        "--optim",
        "--optimizer",
        dest="optimizer",
        metavar="OPTIM",
        default="adamw_torch_fused",
        help="The optimizer, as TrainingArguments names it. Default: %(default)s.",
    )
    @argument(
        "-p",
        "--precision",
        default=None,
        help="fp32; bf16 or fp16, with autocast when training; or pure-bf16, pure-fp16. Default: the type of "
        "the weights.",
    )
    @argument(
        "-c",
        "--checkpointing",
        "--activation-checkpointing",
        "--gradient-checkpointing",
        action="store_true",
        help="Compute activations again in the backward pass.",
    )
    @argument("--accumulation", type=int, default=1, help="Batches per step. Default: %(default)s.")
    @argument(
        "--lora",
        default="",
        metavar="RANK[,LAYER...]",
        help="Add LoRA adapters of this rank, in these layers or where peft puts them by default.",
    )
    @argument(
        "-q",
        "--quantized",
        default="",
        help="How bitsandbytes stores the weights: int8, nf4, or nf4-double.",
    )
    @argument(
        "--image",
        type=int,
        default=None,
        metavar="PIXELS",
        help="Side of the image in each row, where the model takes any size.",
    )
    @argument("--kv", default="", help="Type of a quantised KV cache: fp8, int8, int4 or int2.")
    @argument(
        "--shards",
        default="",
        metavar="WAY:RANKS",
        help="Forecast one of several ranks: zero1, zero2, zero3, fsdp or tp, such as zero3:8.",
    )
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
        if arguments.train and arguments.inference:
            raise UsageError("use --train or --inference, not both")
        from hfmem_widget.features.fit.api import fit
        from hfmem_widget.features.fit.html import fit_bundle

        fitted = fit(
            self._named(arguments.model),
            training=not arguments.inference,
            precision=arguments.precision and arguments.precision.replace("-", " "),
            lora=lora_of(arguments.lora),
            **{name: getattr(arguments, name) for name in _AS_GIVEN},
        )
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


def lora_of(text: str) -> tuple[int, tuple[str, ...]] | None:
    """Return the rank and the layers of ``16,q_proj,v_proj``; None for an empty text."""
    if not text:
        return None
    rank, *layers = (part.strip() for part in text.split(","))
    try:
        return int(rank), tuple(layer for layer in layers if layer)
    except ValueError:
        message = f"--lora must start with a rank, such as 16,q_proj,v_proj, not {plain(text)!r}"
        raise OptionError(message) from None
