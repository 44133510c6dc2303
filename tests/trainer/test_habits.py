"""The settings and libraries that people train with change nothing about what is followed."""

import copy
import os
import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel, TrainerCallback

import hfmem_widget
from hfmem_widget import MemoryCallback
from hfmem_widget.drivers.trainer import AT_ONCE_NOTE, TRACKER_NOTE
from hfmem_widget.monitor.shared import shared_monitor
from hfmem_widget.options import WatchOptions
from tests.trainer.tiny import (
    EPOCH,
    PHASES,
    VOCABULARY,
    InOrder,
    Plain,
    arguments,
    make_trainer,
    of_kind,
    outline,
    session_of,
    tiny_model,
)

ONE_STEP = f"step 1{PHASES}"


def first_step(trainer: Any) -> str:
    """Return the outline of a training of one step, without training and epoch."""
    session = session_of(trainer)
    assert trainer.state.global_step == 1
    return outline(session).partition("epoch 1 of 1\n")[2].strip()


SETTINGS: dict[str, dict[str, Any]] = {
    "torch_empty_cache_steps": {"torch_empty_cache_steps": 1},
    "gradient_checkpointing": {"gradient_checkpointing": True},
    "bf16": {"bf16": True},
    "include_num_input_tokens_seen": {"include_num_input_tokens_seen": True},
    "neftune": {"neftune_noise_alpha": 5.0},
    "no clipping": {"max_grad_norm": 0.0},
    "adafactor": {"optim": "adafactor"},
    "torch_compile": {"torch_compile": True, "torch_compile_backend": "eager"},
    # Its hooks are on the wrapper, and trace into nothing.
    "compiled": {"remove_unused_columns": False},
}
MODELS: dict[str, Callable[[], Any]] = {
    "torch_compile": Plain,
    "compiled": lambda: torch.compile(Plain(), backend="eager", fullgraph=True, dynamic=False),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_leaves_the_phases_as_they_are(tmp_path: Path, setting: str) -> None:
    """A step has one forward, one backward and one optimizer; fp16 needs a GPU."""
    model = MODELS.get(setting, tiny_model)()
    trainer = make_trainer(tmp_path, max_steps=1, model=model, **SETTINGS[setting])

    assert first_step(trainer) == ONE_STEP


@pytest.mark.parametrize("workers", [2, 8])
def test_workers_that_load_data_are_left_alone(tmp_path: Path, workers: int) -> None:
    """Workers are forked in the middle of a watch, and the training gets all its batches."""
    session = session_of(make_trainer(tmp_path, dataloader_num_workers=workers))

    assert [group.tokens for group in session.steps] == [36, 32]
    assert session.polling.stopped == ""


def test_the_trainers_own_memory_metrics_cost_one_note(tmp_path: Path) -> None:
    """One note stands for all trainings, and both sets of figures are complete."""
    trainer = make_trainer(tmp_path, skip_memory_metrics=False, logging_strategy="epoch")
    with hfmem_widget.watch(quiet=True) as session:
        trainer.train()
        trainer.train()

    assert session.notes.count(TRACKER_NOTE) == 1
    assert "train_mem_cpu_peaked_delta" in trainer.state.log_history[-1]
    assert [group.first for group in session.steps] == [1, 2, 1, 2]
    assert all(span.peaks["cpu/allocated"].value > 0 for span in of_kind(session, "step"))


def test_a_model_compiled_in_place_has_no_hooks(tmp_path: Path) -> None:
    """Hooks would be compiled with the model; so a step has no phase before its backward pass."""
    hooks: list[int] = []

    class Looks(TrainerCallback):  # type: ignore[misc]  # transformers is not checked here
        def on_step_end(self, *_: Any, model: Any, **__: Any) -> None:
            hooks.append(len(model._forward_hooks) + len(model._forward_pre_hooks))

    model = Plain()
    model.compile(backend="eager", fullgraph=True, dynamic=False)
    trainer = make_trainer(tmp_path, model=model, max_steps=1, callbacks=[Looks])

    assert first_step(trainer) == "step 1\n      backward\n      optimizer"
    assert hooks == [0]


class Meets(InOrder):
    """Tells when its first step begins, and goes on from there when it may."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.arrived, self.may_go_on = threading.Event(), threading.Event()

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        self.arrived.set()
        assert self.may_go_on.wait(300)
        return super().training_step(*args, **kwargs)

    def begin(self) -> threading.Thread:
        """Train on a thread, and return it when the first step has begun."""
        thread = threading.Thread(target=self.train)
        thread.start()
        assert self.arrived.wait(300)
        return thread


def test_the_first_of_two_trainings_at_once_is_followed_and_a_note_says_so(tmp_path: Path) -> None:
    """All its steps, undisturbed by those of the other, whichever ends first; the next has its own again."""
    first, second = (make_trainer(tmp_path / name, kind=Meets) for name in "ab")
    with hfmem_widget.watch(quiet=True) as session:
        threads = [first.begin(), second.begin()]
        for trainer in (first, second):
            trainer.may_go_on.set()
        for thread in threads:
            thread.join()
        assert [span.label for span in of_kind(session, "step")] == ["step 1", "step 2"]
        first.train()

    assert len(of_kind(session, "train")) == 2
    assert len(of_kind(session, "step")) == 4
    assert session.notes.count(AT_ONCE_NOTE) == 1


def test_a_training_that_outlived_its_cell_lets_another_be_followed(tmp_path: Path) -> None:
    """A training is followed no longer than its cell, so the next Trainer is the only one."""
    first = make_trainer(tmp_path / "a", kind=Meets)
    monitor = shared_monitor()
    session = monitor.begin(WatchOptions())
    cell = monitor.open_span(session, "cell", "one")
    thread = first.begin()
    monitor.close_span(session, cell.id)
    cell = monitor.open_span(session, "cell", "two")
    make_trainer(tmp_path / "b").train()
    first.may_go_on.set()
    thread.join()
    monitor.end(session)

    assert [span.label for span in session.spans if span.parent == cell.id] == ["train"]
    assert AT_ONCE_NOTE not in session.notes


def test_a_fork_in_the_middle_of_a_training_is_harmless(tmp_path: Path) -> None:
    """The parent's training is followed to its end, whatever the child does."""

    class Forks(TrainerCallback):  # type: ignore[misc]  # transformers is not checked here
        def on_pre_optimizer_step(self, *_: Any, model: Any, **__: Any) -> None:
            child = os.fork()
            if child == 0:
                with hfmem_widget.span("in the child"):
                    os._exit(7)
            self.status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    forks = Forks()
    trainer = make_trainer(tmp_path, max_steps=1, callbacks=[forks])

    assert first_step(trainer) == ONE_STEP
    assert forks.status == 7


class CopiesTheTrainer(TrainerCallback):  # type: ignore[misc]  # transformers is not checked here
    """Copies the Trainer and its callbacks while it trains, as population-based searches do."""

    trainer: Any = None
    copied: Sequence[Any] = ()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if not self.copied:
            trainer, self.trainer = self.trainer, None
            callbacks = trainer.callback_handler.callbacks
            self.copied = (None,)
            self.copied = (copy.deepcopy(trainer), copy.deepcopy(callbacks))
            pickle.dumps([one for one in callbacks if isinstance(one, MemoryCallback)])


@pytest.mark.parametrize("own", [False, True])
def test_a_trainer_can_be_copied_while_it_is_followed(tmp_path: Path, *, own: bool) -> None:
    """A copy has the callback that the Trainer was given, and no part in this training."""
    copies = CopiesTheTrainer()
    callbacks = [copies, *([MemoryCallback(log=True)] if own else [])]
    copies.trainer = trainer = make_trainer(tmp_path, max_steps=2, callbacks=callbacks)
    session = session_of(trainer)

    assert len(copies.copied) == 2
    ours = [one for one in copies.copied[1] if isinstance(one, MemoryCallback)]
    assert [one.log for one in ours] == [own]
    assert all(one._run is None for one in ours)
    assert session.steps.count == 2


STEPS = f"{EPOCH}\n    step 1{PHASES}\n    step 2{PHASES}"
ROLLOUT = "\n      generate\n        prefill\n        decode"


ON_ATTENTION = {"target_modules": ["c_attn"], "fan_in_fan_out": True}


EXPERIMENTAL = {"ORPO": "orpo", "CPO": "cpo", "OnlineDPO": "online_dpo"}
"""TRL's trainers that have a module of their own."""


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
def test_training_adapters_is_followed(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    """All weights are counted, but gradients and states only of those that are trained."""
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
    models: Mapping[str, Callable[[], Any]] = MappingProxyType({}),
    **options: Any,
) -> Any:
    """Return one of TRL's Trainers with its own rows, settings and models."""
    module = f"trl.experimental.{EXPERIMENTAL[name]}" if name in EXPERIMENTAL else "trl"
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
    """TRL's own logs and ours have the same number of tokens."""
    options: dict[str, Any] = {"packing": packing, "max_length": 32, "max_steps": 1}
    logged: dict[str, Any] = {"logging_strategy": "steps", "logging_steps": 1}
    trainer = of_trl("SFT", tmp_path, [{"text": text} for text in TEXTS], **options, **logged)
    session = session_of(trainer)
    step = of_kind(session, "step")[0]

    assert outline(session) == f"{EPOCH}\n    step 1{PHASES}"
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
REFERENCE = {"ref_model": tiny_model}
REWARDS = {"reward_funcs": lambda: judged}


def judged(completions: list[str], **_: Any) -> list[float]:
    return [float(len(one)) for one in completions]


def of_rewards() -> Any:
    from transformers import GPT2ForSequenceClassification

    config = tiny_model().config
    config.num_labels = 1
    return GPT2ForSequenceClassification(config)


LABELLED = [{"prompt": "say ", "completion": text, "label": text < "g"} for text in TEXTS]
OTHERS: dict[str, tuple[Any, dict[str, Any], dict[str, Callable[[], Any]]]] = {
    "KTO": (LABELLED, {}, REFERENCE),
    "DPO": (PREFERENCES, {}, REFERENCE),
    "Reward": (PREFERENCES, {}, {"model": of_rewards}),
    "GRPO": (PROMPTS, ROLLOUTS, REWARDS),
    "RLOO": (PROMPTS, ROLLOUTS | {"beta": 0.0}, REWARDS),
    "Distillation": (PROMPTS, {"max_completion_length": 4}, {"teacher_model": tiny_model}),
    "ORPO": (PREFERENCES, {"max_length": 32}, {}),
    "CPO": (PREFERENCES, {"max_length": 32}, {}),
    "OnlineDPO": (PROMPTS, SHORT, REWARDS),
}
"""TRL's other trainers: their rows, settings and models; those with prompts generate first in each step."""


@pytest.mark.parametrize("name", OTHERS)
def test_trls_other_trainers_are_followed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step has its phases, a rollout with its KV cache among them, optimizer states are counted."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    data, options, models = OTHERS[name]
    step = f"{ROLLOUT if data is PROMPTS else ''}{PHASES}"
    trainer = of_trl(name, tmp_path, data, models, max_steps=2, **options)
    session = session_of(trainer)

    assert outline(session) == f"{EPOCH}\n    step 1{step}\n    step 2{step}"
    weights = sum(one.nbytes for one in trainer.model.parameters())
    assert session.peak("cpu/optimizer") == pytest.approx(2 * weights, rel=0.01)
    assert session.peak("cpu/weights") >= weights
    if data is PROMPTS:
        assert session.peak("cpu/kv_cache") > 0
