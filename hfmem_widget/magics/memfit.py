"""``%memfit``: what a model will need, and whether that fits here, before it is loaded."""

from __future__ import annotations

from argparse import Namespace

from IPython.core.error import UsageError
from IPython.core.magic import magics_class
from IPython.core.magic_arguments import argument

from hfmem_widget.errors import OptionError
from hfmem_widget.magics.report import ReportMagics, report
from hfmem_widget.magics.usage import check_output
from hfmem_widget.text import plain


@magics_class
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
    @argument("-c", "--checkpointing", action="store_true", help="Use gradient checkpointing.")
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
        "--headroom",
        type=float,
        default=0.10,
        help="Share of the free memory to leave unused. Default: %(default)s.",
    )
    @argument(
        "-o", "--output", default="", metavar="NAME", help="Keep the forecast in this variable."
    )
    def memfit(self, arguments: Namespace) -> None:
        """Forecast the memory of a model, part by part, and whether it fits here. Nothing is loaded.

        ::

            %memfit ./bert-large --batch 16 --length 512 --precision bf16
            %memfit config --lora 16,q_proj,v_proj --quantized nf4
            %memfit model --inference --batch 8 --length 2048

        runs one step of the model on PyTorch's meta device, where tensors have shapes but no memory.
        """
        check_output(arguments.output, self._shell)
        if arguments.train and arguments.inference:
            message = "use --train or --inference, not both"
            raise UsageError(message)
        from hfmem_widget.features.fit.api import fit
        from hfmem_widget.features.fit.html import fit_bundle

        model = arguments.model
        fitted = fit(
            self._shell.user_ns.get(model, model) if model.isidentifier() else model,
            training=not arguments.inference,
            batch=arguments.batch,
            length=arguments.length,
            optimizer=arguments.optim,
            precision=arguments.precision and arguments.precision.replace("-", " "),
            checkpointing=arguments.checkpointing,
            accumulation=arguments.accumulation,
            quantized=arguments.quantized,
            lora=lora_of(arguments.lora),
            headroom=arguments.headroom,
        )
        self.show(fit_bundle(fitted))
        if arguments.output:
            self._shell.user_ns[arguments.output] = fitted


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
