"""Real steps of one rank by itself (`--try`) against a Trainer's ranks on two GPUs: allocated at the peak.

Each training runs in processes of its own, from the second step on; `--only` names some models.

    python bench/one_rank.py [--only llama qwen2 gpt2 bert]
"""

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import torch
import transformers
from common import measure
from transformers import PreTrainedConfig, Trainer, TrainerCallback, TrainingArguments

from hfmem_widget.features.fit.setting import Setting
from hfmem_widget.features.fit.sharding import layers_of
from hfmem_widget.features.fit.trial import tried_step

RANKS, ROWS, TOKENS = 2, 4, 512
AT_ONCE = 8  # trainings

SHAPE = {"hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 16}
DECODER = {**SHAPE, "intermediate_size": 2816, "num_key_value_heads": 8, "use_cache": False}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {**DECODER, "vocab_size": 32_000}),
    "qwen2": ("Qwen2ForCausalLM", {**DECODER, "vocab_size": 50_000, "tie_word_embeddings": True}),
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 1024, "n_layer": 12, "n_head": 16, "use_cache": False}),
    "bert": ("BertForSequenceClassification", {**SHAPE, "intermediate_size": 4096}),
}
WAYS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"precision": "bf16"},
    "bf16, checkpointing": {"precision": "bf16", "checkpointing": True},
    "bf16, 2 batches": {"precision": "bf16", "accumulation": 2},
    "pure bf16": {"precision": "pure bf16"},
    "bf16, LoRA": {"precision": "bf16", "lora": 16},
}


def config_of(model: str) -> PreTrainedConfig:
    """Return the configuration of one of `MODELS`."""
    name, values = MODELS[model]
    config = getattr(transformers, name).config_class(**values)
    config.architectures = [name]
    return config


class FromTheSecondStep(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Resets the peak after the first step, which has no optimizer states yet."""

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Reset it."""
        if state.global_step == 1:
            torch.cuda.reset_peak_memory_stats()


def train(model: str, way: str, shards: str, path: str) -> None:
    """Train as one of the ranks; the first writes its peak."""
    config, options = config_of(model), WAYS[way]
    precision = options.get("precision", "fp32")
    dtype = torch.bfloat16 if precision.startswith("pure") else torch.float32
    trained = getattr(transformers, MODELS[model][0])._from_config(config, dtype=dtype)  # noqa: SLF001
    if options.get("lora"):
        from peft import LoraConfig, get_peft_model

        trained = get_peft_model(trained, LoraConfig(r=options["lora"]))
    # As the change of %memfit writes it: accelerate fails where it gathers BERT's embeddings by themselves.
    layers = {"version": 2, "transformer_layer_cls_to_wrap": layers_of(trained)}
    fsdp = {"fsdp": "full_shard auto_wrap", "fsdp_config": layers}
    arguments = TrainingArguments(
        tempfile.mkdtemp(),
        per_device_train_batch_size=ROWS,
        gradient_accumulation_steps=options.get("accumulation", 1),
        gradient_checkpointing=options.get("checkpointing", False),
        bf16=precision == "bf16",
        max_steps=4,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        **(fsdp if shards == "fsdp" else {}),
    )
    ids = torch.arange(1000, 1000 + TOKENS)
    row = {"input_ids": ids, "labels": 0 if model == "bert" else ids}
    callbacks = [FromTheSecondStep()]
    Trainer(trained, arguments, train_dataset=[row] * 64, callbacks=callbacks).train()
    if os.environ["RANK"] == "0":
        Path(path).write_text(json.dumps(torch.cuda.max_memory_allocated()), encoding="utf-8")


def together(job: tuple[int, str, str, str]) -> float:
    """Return the peak of a training by torchrun, in bytes."""
    number, *words = job
    with tempfile.NamedTemporaryFile() as file:
        torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)]
        port = ["--master-port", str(29_600 + number)]
        subprocess.run(
            [sys.executable, *torchrun, *port, __file__, "--train", *words, file.name],
            check=True,
            capture_output=True,
        )
        return float(Path(file.name).read_text("utf-8"))


def by_itself(job: tuple[int, str, str, str]) -> float:
    """Return the peak of the first rank by itself, in bytes."""
    _, model, way, shards = job
    options: Any = {"batch": ROWS, "length": TOKENS, "shards": f"{shards}:{RANKS}", **WAYS[way]}
    return float(tried_step(config_of(model), Setting().changed(options, "fit()")).peak)


def main() -> None:
    """Measure and print."""
    parser = measure.cli(__doc__)
    parser.add_argument("--only", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--train", nargs=4)
    arguments = parser.parse_args()
    if arguments.train:
        train(*arguments.train)
        return
    if torch.cuda.device_count() < RANKS:
        print("This needs two GPUs.")
        return
    ddp = [way for way in WAYS if way.startswith("bf16") and "LoRA" not in way]
    kinds = [*product(WAYS, ["fsdp"]), *product(ddp, ["ddp"])]
    jobs = [
        (number, model, *kind)
        for number, (model, kind) in enumerate(product(arguments.only, kinds))
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        real, tried = list(pool.map(together, jobs)), list(pool.map(by_itself, jobs))
    off = [100 * (one / other - 1) for one, other in zip(tried, real, strict=True)]
    rows = [
        [f"{model}, {shards}, {way}", f"{one / 2**20:,.0f}", f"{difference:+.2f}"]
        for (_, model, way, shards), one, difference in zip(jobs, real, off, strict=True)
    ]
    measure.report(
        f"One of {RANKS} ranks by itself, {ROWS} rows of {TOKENS} tokens",
        measure.machine("torch", "transformers", "accelerate"),
        ["training", "MiB, together", "% off"],
        rows,
        notes=[
            f"from {min(off):+.2f} to {max(off):+.2f} %, median {measure.estimate(off).text(1, 2)}"
        ],
        raw={"together": real, "by itself": tried},
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
