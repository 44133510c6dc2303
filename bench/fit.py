"""What is predicted before loading, against what then really happens: BERT, GPT-2 and Llama shapes.

On a GPU a `Trainer` makes four steps with random weights, and the allocator's own peak of the last two is the
truth. With ``--small`` the models are small, it runs on the CPU, and tensors are counted as they come and go.
"""

import gc
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from common import measure

from hfmem_widget.features.fit.live_bytes import LiveBytes
from hfmem_widget.features.fit.model import Forecast
from hfmem_widget.features.fit.predict import predict
from hfmem_widget.features.fit.setting import Setting

STEPS = 4
PARTS = ("weights", "optimizer", "gradients", "activations")
HEAD = ["configuration", "predicted MiB", "measured MiB", "off", "peak in", *PARTS]
LORA = ("q_proj", "k_proj", "v_proj", "o_proj")


@dataclass(frozen=True, slots=True)
class Case:
    """A model and what is done with it.

    Attributes
    ----------
    shape : callable
        Takes whether it is to be small and returns a configuration.
    options : dict
        Those of its `Setting`.
    """

    name: str
    shape: Callable[..., Any]
    options: dict[str, Any] = field(default_factory=dict)


def bert(*, small: bool) -> Any:
    """Return the shape of bert-large."""
    size: dict[str, Any] = (
        {
            "hidden_size": 256,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "intermediate_size": 1024,
        }
        if small
        else {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
        }
    )
    return transformers.BertConfig(architectures=["BertForSequenceClassification"], **size)


def gpt2(*, small: bool) -> Any:
    """Return the shape of gpt2-medium."""
    size = (
        {"n_embd": 256, "n_layer": 4, "n_head": 4}
        if small
        else {"n_embd": 1024, "n_layer": 24, "n_head": 16}
    )
    return transformers.GPT2Config(architectures=["GPT2LMHeadModel"], use_cache=False, **size)


def llama(layers: int, width: int) -> Callable[..., Any]:
    """Return shapes with four query heads to each head of keys and values."""

    def shape(*, small: bool) -> Any:
        size = (
            {"num_hidden_layers": 4, "hidden_size": 256}
            if small
            else {"num_hidden_layers": layers, "hidden_size": width}
        )
        return transformers.LlamaConfig(
            architectures=["LlamaForCausalLM"],
            intermediate_size=4 * size["hidden_size"],
            num_attention_heads=size["hidden_size"] // 64,
            num_key_value_heads=size["hidden_size"] // 256,
            vocab_size=8192 if small else 128_256,
            max_position_embeddings=4096,
            use_cache=False,
            tie_word_embeddings=True,
            **size,
        )

    return shape


HALF_BILLION, BILLION = llama(16, 1280), llama(16, 2048)

CASES = (
    Case("BERT fp32", bert, {"batch": 4, "length": 512, "optimizer": "adamw_torch_fused"}),
    Case("BERT fp32, foreach", bert, {"batch": 1, "length": 128, "optimizer": "adamw_torch"}),
    Case(
        "BERT bf16",
        bert,
        {"batch": 16, "length": 512, "precision": "bf16", "optimizer": "adamw_torch_fused"},
    ),
    Case(
        "BERT bf16, checkpointing, Adafactor",
        bert,
        {
            "batch": 16,
            "length": 512,
            "precision": "bf16",
            "checkpointing": True,
            "optimizer": "adafactor",
        },
    ),
    Case("GPT-2 fp32", gpt2, {"batch": 4, "length": 512, "optimizer": "adamw_torch"}),
    Case(
        "GPT-2 bf16",
        gpt2,
        {"batch": 4, "length": 1024, "precision": "bf16", "optimizer": "adamw_torch_fused"},
    ),
    Case(
        "GPT-2 bf16, accumulation 2",
        gpt2,
        {"batch": 2, "length": 512, "precision": "bf16", "accumulation": 2, "optimizer": "sgd"},
    ),
    Case(
        "Llama 0.5 B fp32",
        HALF_BILLION,
        {"batch": 1, "length": 1024, "optimizer": "adamw_torch_fused"},
    ),
    Case(
        "Llama 0.5 B bf16",
        HALF_BILLION,
        {"batch": 2, "length": 1024, "precision": "bf16", "optimizer": "adamw_torch_fused"},
    ),
    Case(
        "Llama 1.2 B pure bf16",
        BILLION,
        {"batch": 2, "length": 1024, "precision": "pure bf16", "optimizer": "adamw_torch_fused"},
    ),
    Case(
        "Llama 1.2 B pure bf16, checkpointing",
        BILLION,
        {
            "batch": 4,
            "length": 2048,
            "precision": "pure bf16",
            "checkpointing": True,
            "optimizer": "adamw_torch_fused",
        },
    ),
    Case(
        "Llama 1.2 B LoRA, pure bf16",
        BILLION,
        {
            "batch": 4,
            "length": 1024,
            "precision": "pure bf16",
            "lora": (16, LORA),
            "optimizer": "adamw_torch_fused",
        },
    ),
    Case(
        "Llama 1.2 B inference bf16",
        BILLION,
        {"batch": 8, "length": 2048, "precision": "bf16", "training": False},
    ),
)


def built(case: Case, config: Any) -> Any:
    """Return the model on the host, with random weights."""
    options = case.options
    precision = options.get("precision", "fp32")
    is_half = precision.startswith("pure") or not options.get("training", True)
    kind = getattr(transformers, config.architectures[0])
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = kind._from_config(  # noqa: SLF001  (what AutoModel.from_config calls)
            config, dtype=torch.bfloat16 if is_half else torch.float32
        )
    if "lora" in options:
        from peft import LoraConfig, get_peft_model

        rank, targets = options["lora"]
        model = get_peft_model(model, LoraConfig(r=rank, target_modules=list(targets)))
    return model


def batch(case: Case, config: Any, rows: int) -> dict[str, torch.Tensor]:
    """Return a batch without padding."""
    ids = torch.randint(0, min(config.vocab_size, 1000), (rows, case.options["length"]))
    is_classifier = config.architectures[0].endswith("SequenceClassification")
    labels = torch.zeros(rows, dtype=torch.long) if is_classifier else ids.clone()
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


class FromTheThirdStep(transformers.TrainerCallback):
    """Begins the peak anew when the optimizer's states are there."""

    def on_step_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Reset the allocator's peak."""
        if state.global_step == STEPS - 2:
            torch.cuda.reset_peak_memory_stats()


def on_gpu(case: Case, config: Any) -> int:
    """Return the allocator's peak in bytes."""
    options = case.options
    torch.cuda.reset_peak_memory_stats()
    torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001  (so that each case pays for its own)
    before = torch.cuda.memory_allocated()
    model = built(case, config)
    if not options.get("training", True):
        given = {name: one.cuda() for name, one in batch(case, config, options["batch"]).items()}
        del given["labels"]
        with torch.no_grad():
            model.eval()(**given, use_cache=True, logits_to_keep=1)
        return torch.cuda.max_memory_allocated() - before
    rows = batch(case, config, options["batch"] * options.get("accumulation", 1) * STEPS)
    data = [{name: one[at] for name, one in rows.items()} for at in range(len(rows["labels"]))]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            per_device_train_batch_size=options["batch"],
            gradient_accumulation_steps=options.get("accumulation", 1),
            max_steps=STEPS,
            optim=options["optimizer"],
            bf16=options.get("precision") == "bf16",
            gradient_checkpointing=options.get("checkpointing", False),
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(
            model, arguments, train_dataset=data, callbacks=[FromTheThirdStep()]
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    peak = torch.cuda.max_memory_allocated() - before
    trainer.accelerator.free_memory()
    return peak


def on_cpu(case: Case, config: Any) -> int:
    """Return the peak of tensors that were alive, in bytes; without the optimizer's step."""
    options = case.options
    model = built(case, config)
    live = LiveBytes(device="cpu")
    live.leave_out([*model.parameters(), *model.buffers()])
    held = sum(one.untyped_storage().nbytes() for one in {*model.parameters(), *model.buffers()})
    given = batch(case, config, options["batch"])
    if not options.get("training", True):
        del given["labels"]
        with torch.no_grad(), live:
            copy = {name: one.clone() for name, one in given.items()}
            model.eval()(**copy, use_cache=True, logits_to_keep=1)
        return held + live.peak
    model.train()
    if options.get("checkpointing"):
        model.gradient_checkpointing_enable()
    half = options.get("precision") == "bf16"
    with live:
        for _ in range(options.get("accumulation", 1)):
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = model(**{name: one.clone() for name, one in given.items()}).loss
            loss.backward()
    return held + live.peak


def row(name: str, forecast: Forecast, real: float) -> list[str]:
    """Return one line of the table."""
    sizes = [forecast.bytes(part) for part in PARTS]
    sizes[-1] += forecast.bytes("kv_cache")
    figures = [f"{size / 2**20:,.0f}" for size in (forecast.total, real, *sizes)]
    return [
        name,
        *figures[:2],
        f"{(forecast.total / real - 1) * 100:+.1f} %",
        forecast.moment,
        *figures[2:],
    ]


def main() -> None:
    """Predict, run and compare every case."""
    parser = measure.cli(__doc__)
    parser.add_argument("--small", action="store_true", help="small models on the CPU")
    arguments = parser.parse_args()
    small = arguments.small or not torch.cuda.is_available()
    transformers.logging.set_verbosity_error()
    rows = []
    for case in CASES:
        config = case.shape(small=small)
        options = dict(case.options)
        if small:
            options |= {"length": min(options["length"], 256), "batch": min(options["batch"], 2)}
            options["optimizer"] = "sgd"  # its step is not measured here
        forecast = predict(config, Setting(device="cpu" if small else "cuda", **options))
        real = (on_cpu if small else on_gpu)(Case(case.name, case.shape, options), config)
        rows.append(row(case.name, forecast, real))
        gc.collect()
        if not small:
            torch.cuda.empty_cache()
    where = "CPU, small models" if small else torch.cuda.get_device_name()
    measure.report(
        "Peak of a step, predicted before loading and measured",
        f"{measure.machine('torch', 'transformers', 'accelerate', 'peft')}; {where}",
        HEAD,
        rows,
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
