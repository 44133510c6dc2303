"""What the sliders of "what if" promise, against real steps at sizes that the training never had.

Each model is trained for three steps in a watch, and `fit` gives the coefficients that the sliders compute
with. Then the same model is trained at other batches and lengths, with and without checkpointing, and the
allocator's own peak is compared with what the sliders show there. Models have random weights, and nothing is
downloaded. Needs a GPU.
"""

import argparse
import gc
import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from common.architectures import TEXT
from common.moves_cases import STEADY_BERT, STEADY_GPT2
from transformers import Trainer, TrainingArguments

import hfmem_widget
from hfmem_widget.text import checkpointing_option

Point = tuple[int, int, bool, str]
"""Rows, tokens of a row, checkpointing, precision."""

MODELS: Final[tuple[tuple[str, str, dict[str, Any], tuple[Point, ...]], ...]] = (
    (
        "BertForMaskedLM",
        "BertConfig",
        {**STEADY_BERT, "max_position_embeddings": 2048},
        ((6, 640, False, "fp32"), (12, 256, True, "fp32"), (5, 1024, False, "bf16"), (3, 384, True, "bf16")),
    ),
    (
        "GPT2LMHeadModel",
        "GPT2Config",
        STEADY_GPT2,
        ((3, 768, False, "fp32"), (13, 320, False, "fp32"), (10, 896, True, "fp32"), (7, 448, False, "bf16")),
    ),
    (
        "LlamaForCausalLM",
        "LlamaConfig",
        {},
        ((2, 1024, False, "fp32"), (11, 288, True, "fp32"), (14, 704, True, "bf16"), (9, 544, False, "bf16")),
    ),
    (
        "Qwen3ForCausalLM",
        "Qwen3Config",
        {"vocab_size": 151_936},
        ((1, 960, False, "fp32"), (6, 416, False, "fp32"), (8, 608, True, "fp32"), (3, 832, False, "bf16")),
    ),
    (
        "OPTForCausalLM",
        "OPTConfig",
        {"ffn_dim": 4096, "dropout": 0.0, "word_embed_proj_dim": 1024},
        ((15, 272, False, "fp32"), (4, 736, False, "fp32"), (16, 1024, True, "fp32"), (5, 352, True, "bf16")),
    ),
)  # fmt: skip
"""The class, its configuration and what that has of its own; the points at which real steps are made."""

OWN: Final[Point] = (8, 512, False, "fp32")


def trained(model: Any, point: Point, *, watched: bool) -> Any:
    """Train three steps; return the watch's coefficients, or the allocator's peak in bytes."""
    rows, tokens, checkpointing, precision = point
    ids = torch.randint(10, 500, (3 * rows, tokens))
    data = [{"input_ids": row, "labels": row.clone()} for row in ids]
    for each in data:
        each["attention_mask"] = torch.ones(tokens, dtype=torch.long)
    with tempfile.TemporaryDirectory() as folder:
        options: Any = {checkpointing_option(): checkpointing}
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=rows,
            max_steps=3,
            report_to="none",
            disable_tqdm=True,
            save_strategy="no",
            learning_rate=1e-5,
            bf16=precision == "bf16",
            **options,
        )
        trainer = Trainer(model, arguments, train_dataset=data)
        if not watched:
            torch.cuda.reset_peak_memory_stats()
            trainer.train()
            return torch.cuda.max_memory_allocated()
        with hfmem_widget.watch() as session:
            trainer.train()
        hfmem_widget.fit(session)
        return session.what_if


def compared(name: str, config: str, own: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what the sliders show at each point of a model, and what was measured there."""
    known = {key: value for key, value in TEXT.items() if key not in own}
    points = next(each[3] for each in MODELS if each[0] == name)

    def model() -> Any:
        kind = getattr(transformers, config)
        accepted = {key: value for key, value in known.items() if hasattr(kind(), key)}
        return getattr(transformers, name)(kind(**accepted, **own))

    what = trained(model(), OWN, watched=True)
    for point in (OWN, *points):
        gc.collect()
        torch.cuda.empty_cache()
        rows, tokens, checkpointing, precision = point
        variants = () if what is None else what.variants
        found = [
            v for v in variants if (v.checkpointing, v.precision) == (checkpointing, precision)
        ]
        result = {"model": name, "point": point, "known": bool(found) and what.knows(rows, tokens)}
        result["measured"] = trained(model(), point, watched=False)
        if found:
            peak = found[0].peak(rows, tokens)
            result |= {"peak": peak, "low": peak * found[0].low, "high": peak * found[0].high}
        yield result


def main() -> None:
    """Run the models and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--only", nargs="*", default=())
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("needs a GPU")
        return
    transformers.utils.logging.set_verbosity_error()
    results = []
    for name, config, own, _ in MODELS:
        if arguments.only and name not in arguments.only:
            continue
        for result in compared(name, config, own):
            results.append(result)
            measured = result["measured"]
            off = 100 * (result.get("peak", float("nan")) / measured - 1)
            held = result.get("low", 0) <= measured <= result.get("high", 0)
            print(
                f"{name} | {result['point']} | {measured / 2**20:,.0f} | {off:+.2f} % | "
                f"{'within' if held else 'outside'} | {'known' if result['known'] else 'grey'}",
                flush=True,
            )
            if arguments.output:
                arguments.output.write_text(json.dumps(results, indent=1))
    away = [100 * (r["peak"] / r["measured"] - 1) for r in results if "peak" in r]
    if away:
        print(
            f"median {statistics.median(map(abs, away)):.2f} %, {min(away):+.2f} to {max(away):+.2f} %"
        )


if __name__ == "__main__":
    main()
