"""Trainers of other libraries, and models that they wrap, are followed as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from transformers import BertConfig, BertModel

from hfmem_widget import MemoryCallback
from tests.trainer.tiny import (
    VOCABULARY,
    arguments,
    make_trainer,
    of_kind,
    outline,
    session_of,
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


ROLLOUT = """train
  epoch 1 of 1
    step 1
      generate
        prefill
        decode
      forward
      backward
      optimizer"""


ON_ATTENTION = {"target_modules": ["c_attn"], "fan_in_fan_out": True}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("LoraConfig", {"r": 2, **ON_ATTENTION}),
        ("LoraConfig", {"r": 2, "use_dora": True, **ON_ATTENTION}),
        ("IA3Config", {"feedforward_modules": [], **ON_ATTENTION}),
        ("PromptTuningConfig", {"num_virtual_tokens": 4}),
        ("PrefixTuningConfig", {"num_virtual_tokens": 4}),
    ],
)
def test_a_model_with_adapters_is_followed(
    kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """All weights are counted, and gradients and states of those alone that are trained."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    config = getattr(peft, kind)(task_type="CAUSAL_LM", **options)
    model = peft.get_peft_model(tiny_model(), config)
    session = session_of(make_trainer(tmp_path, model=model))
    weights = {one.data_ptr(): one for one in model.parameters()}.values()
    trained = [one.nbytes for one in model.parameters() if one.requires_grad]

    assert outline(session) == STEPS
    assert session.peak("cpu/weights") == sum(one.nbytes for one in weights)
    assert session.peak("cpu/gradients") == sum(trained)
    assert session.peak("cpu/optimizer") == 2 * sum(trained) + 4 * len(trained)
    assert 0 < session.contents.trainable < session.contents.parameters
    assert [group.samples for group in session.steps] == [4, 4]


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
    name: str,
    folder: Path,
    data: list[dict[str, Any]],
    *,
    module: str = "trl",
    models: Mapping[str, Callable[[], Any]] = MappingProxyType({}),
    **options: Any,
) -> Any:
    """Return one of TRL's Trainers with its own rows, settings and models."""
    pytest.importorskip("trl", reason="trl is not installed")
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    trl = pytest.importorskip(module, reason=f"this trl has no {name}")
    config = arguments(folder, getattr(trl, f"{name}Config"), bf16=False, **options)
    given = {"model": tiny_model} | dict(models)
    return getattr(trl, f"{name}Trainer")(
        **{name: make() for name, make in given.items()},
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
    session = session_of(trainer)
    step = of_kind(session, "step")[0]

    assert outline(session) == STEPS.partition("\n    step 2")[0]
    counted = step.counts.get("content_tokens", step.counts["tokens"])
    assert counted == trainer.state.log_history[0]["num_tokens"]
    assert trainer.state.log_history[0]["hfmem/tokens"] == step.counts["tokens"]


def test_sentence_embeddings_are_followed(tmp_path: Path) -> None:
    """Both sides of a pair go through the model, in one forward phase."""
    reason = "sentence-transformers is not installed"
    library = pytest.importorskip("sentence_transformers", reason=reason)
    parts = pytest.importorskip("sentence_transformers.models", reason=reason)
    losses = pytest.importorskip("sentence_transformers.losses", reason=reason)
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16}
    config = BertConfig(vocab_size=VOCABULARY, num_attention_heads=2, **sizes)
    BertModel(config).save_pretrained(tmp_path / "bert")
    tokenizer().save_pretrained(tmp_path / "bert")
    words = parts.Transformer(str(tmp_path / "bert"))
    model = library.SentenceTransformer(
        modules=[words, parts.Pooling(config.hidden_size)], device="cpu"
    )
    trainer = library.SentenceTransformerTrainer(
        model=model,
        args=arguments(tmp_path, library.SentenceTransformerTrainingArguments),
        train_dataset=datasets.Dataset.from_dict({"anchor": TEXTS, "positive": TEXTS[::-1]}),
        loss=losses.MultipleNegativesRankingLoss(model),
    )

    assert outline(session_of(trainer)) == STEPS


PREFERENCES = [{"prompt": "say ", "chosen": text, "rejected": "x"} for text in TEXTS]
PROMPTS = [{"prompt": text} for text in TEXTS]
ROLLOUTS = {"num_generations": 2, "max_completion_length": 4}
SHORT = {"max_new_tokens": 4, "max_length": 32}


def judged(completions: list[str], **_: Any) -> list[float]:
    return [float(len(one)) for one in completions]


def of_rewards() -> Any:
    from transformers import GPT2ForSequenceClassification

    config = tiny_model().config
    config.num_labels = 1
    return GPT2ForSequenceClassification(config)


OTHERS: dict[str, tuple[str, Any, dict[str, Any], dict[str, Callable[[], Any]], bool]] = {
    "KTO": (
        "trl",
        [{"prompt": "say ", "completion": text, "label": text < "g"} for text in TEXTS],
        {},
        {"ref_model": tiny_model},
        False,
    ),
    "DPO": ("trl", PREFERENCES, {}, {"ref_model": tiny_model}, False),
    "Reward": ("trl", PREFERENCES, {}, {"model": of_rewards}, False),
    "GRPO": ("trl", PROMPTS, ROLLOUTS, {"reward_funcs": lambda: judged}, True),
    "RLOO": ("trl", PROMPTS, ROLLOUTS | {"beta": 0.0}, {"reward_funcs": lambda: judged}, True),
    "Distillation": (
        "trl",
        PROMPTS,
        {"max_completion_length": 4},
        {"teacher_model": tiny_model},
        True,
    ),
    "ORPO": ("trl.experimental.orpo", PREFERENCES, {"max_length": 32}, {}, False),
    "CPO": ("trl.experimental.cpo", PREFERENCES, {"max_length": 32}, {}, False),
    "OnlineDPO": (
        "trl.experimental.online_dpo",
        PROMPTS,
        SHORT,
        {"reward_funcs": lambda: judged},
        True,
    ),
}
"""TRL's other trainers: their module, rows, settings and models, and whether each step generates first."""


@pytest.mark.parametrize("name", OTHERS)
def test_trls_other_trainers_are_followed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step has its phases, a rollout with its KV cache among them, optimizer states are counted."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    module, data, options, models, generates = OTHERS[name]
    trainer = of_trl(name, tmp_path, data, module=module, models=models, max_steps=2, **options)
    session = session_of(trainer)
    step = (ROLLOUT if generates else STEPS.partition("\n    step 2")[0]).partition("    step 1")[2]

    assert outline(session) == f"train\n  epoch 1 of 1\n    step 1{step}\n    step 2{step}"
    weights = sum(one.nbytes for one in trainer.model.parameters())
    assert session.peak("cpu/optimizer") == pytest.approx(2 * weights, rel=0.01)
    assert session.peak("cpu/weights") >= weights
    if generates:
        assert session.peak("cpu/kv_cache") > 0
