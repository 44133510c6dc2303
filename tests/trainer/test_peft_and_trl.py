"""Trainers of other libraries, and models that they wrap, are followed as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hfmem_widget
from hfmem_widget import MemoryCallback
from hfmem_widget.session import Session
from tests.trainer.tiny import (
    VOCABULARY,
    arguments,
    make_trainer,
    of_kind,
    outline,
    rows,
    tiny_model,
)

STEPS = """train
  epoch 1 of 1
    step 1
      forward
      backward
      optimizer
    step 2
      forward
      backward
      optimizer"""


def model_with_adapters() -> Any:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    config = peft.LoraConfig(
        r=2, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True
    )
    return peft.get_peft_model(tiny_model(), config)


def watched(trainer: Any) -> Session:
    with hfmem_widget.watch(quiet=True) as session:
        trainer.train()
    return session


def test_a_model_with_adapters_is_followed(tmp_path: Path) -> None:
    """The hooks are on what PEFT wraps around the model."""
    session = watched(make_trainer(tmp_path, model=model_with_adapters()))

    assert outline(session) == STEPS
    assert [group.tokens for group in session.steps] == [36, 32]


def test_generation_with_adapters_is_one_block() -> None:
    """However many layers pass it on."""
    model = model_with_adapters()
    with hfmem_widget.watch(quiet=True) as session:
        model.generate(input_ids=rows((4,))[0]["input_ids"][None], max_new_tokens=2)

    assert outline(session) == "generate"


def tokenizer() -> Any:
    """Return a tokenizer of single letters."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = "abcdefghijklmnopqrstuvwxyz "
    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2} | {one: at + 3 for at, one in enumerate(letters)}
    assert len(words) <= VOCABULARY
    raw = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def of_trl(
    name: str, folder: Path, data: list[dict[str, str]], models: Any = None, **options: Any
) -> Any:
    trl = pytest.importorskip("trl", reason="trl is not installed")
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    config = arguments(folder, getattr(trl, f"{name}Config"), bf16=False, **options)
    return getattr(trl, f"{name}Trainer")(
        tiny_model(),
        **(models or {}),
        args=config,
        train_dataset=datasets.Dataset.from_list(data),
        processing_class=tokenizer(),
        callbacks=[MemoryCallback(log=True)],
    )


TEXTS = ["a cat", "one more dog", "fish", "a b c d", "go", "what is it", "no", "yes"]


@pytest.mark.parametrize("packing", [False, True])
def test_supervised_fine_tuning_is_followed(tmp_path: Path, *, packing: bool) -> None:
    """TRL's own logs and ours agree on how many tokens there were."""
    trainer = of_trl(
        "SFT",
        tmp_path,
        [{"text": text} for text in TEXTS],
        packing=packing,
        max_length=32,
        max_steps=1,
        logging_strategy="steps",
        logging_steps=1,
    )
    session = watched(trainer)
    step = of_kind(session, "step")[0]

    assert outline(session) == STEPS.partition("\n    step 2")[0]
    counted = step.counts.get("content_tokens", step.counts["tokens"])
    assert counted == trainer.state.log_history[0]["num_tokens"]
    assert trainer.state.log_history[0]["hfmem/tokens"] == step.counts["tokens"]


def test_preference_optimization_is_followed(tmp_path: Path) -> None:
    """The chosen and the rejected go through the model at once; the reference is no phase."""
    data = [{"prompt": "say ", "chosen": text, "rejected": "x"} for text in TEXTS]
    session = watched(of_trl("DPO", tmp_path, data, {"ref_model": tiny_model()}))

    assert outline(session) == STEPS
    assert [group.samples for group in session.steps] == [8, 8]
