"""A Trainer on the CPU with a model of a few thousand weights, and what a session shows of it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import Trainer, TrainingArguments

import hfmem_widget
from hfmem_widget.session import Session, Span

VOCABULARY = 64
LENGTHS = (5, 9, 4, 7, 6, 8, 5, 3)

Row = dict[str, Any]


def made(kind: str, **choices: Any) -> Any:
    model = getattr(transformers, kind)
    return model(model.config_class(**choices))


def tiny_model() -> Any:
    torch.manual_seed(0)
    ids = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
    sizes = {"vocab_size": VOCABULARY, "n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2}
    return made("GPT2LMHeadModel", **sizes, **ids)


class Plain(torch.nn.Module):  # type: ignore[misc]  # torch is not checked here
    """A language model of two layers, all of which torch.compile can take in one graph."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, 8)
        self.head = torch.nn.Linear(8, VOCABULARY)

    def forward(self, input_ids: Any, labels: Any, **_: Any) -> dict[str, Any]:
        """Return the loss and the logits, shape ``(batch, length, VOCABULARY)``."""
        logits = self.head(self.embedding(input_ids))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


def rows(lengths: Sequence[int] = LENGTHS) -> list[Row]:
    generator = torch.Generator().manual_seed(1)
    ids = [torch.randint(1, VOCABULARY, (length,), generator=generator) for length in lengths]
    return [{"input_ids": one, "labels": one} for one in ids]


def padded(batch: Sequence[Row]) -> Row:
    """Collate rows: padded to the longest, with a mask."""
    pad = torch.nn.utils.rnn.pad_sequence
    ids = pad([row["input_ids"] for row in batch], batch_first=True)
    labels = pad([row["labels"] for row in batch], batch_first=True, padding_value=-100)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}


class InOrder(Trainer):  # type: ignore[misc]  # transformers is not checked here
    """Takes its rows in the order they are in."""

    def _get_train_sampler(self, *_: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def arguments(folder: Path, kind: type[Any] = TrainingArguments, **options: Any) -> Any:
    usual = {
        "per_device_train_batch_size": 4,
        "num_train_epochs": 1,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
    }
    return kind(str(folder), **(usual | options))


def make_trainer(
    folder: Path,
    *,
    kind: type[Any] = InOrder,
    model: Any = None,
    data: Any = None,
    collate: Any = padded,
    callbacks: Sequence[Any] = (),
    **options: Any,
) -> Any:
    """Return a Trainer of two steps an epoch, unless the options say otherwise."""
    return kind(
        tiny_model() if model is None else model,
        arguments(folder, **options),
        data_collator=collate,
        train_dataset=rows() if data is None else data,
        eval_dataset=rows((5, 6, 7, 8)),
        callbacks=list(callbacks),
    )


def session_of(trainer: Any) -> Session:
    with hfmem_widget.watch(quiet=True) as session:
        trainer.train()
    return session


EPOCH = "train\n  epoch 1 of 1"
PHASES = "\n      forward\n      backward\n      optimizer"
"""In the outline of a training of one epoch: its beginning, and what is in each step."""


def outline(session: Session, *, depth: int = 9) -> str:
    """Return the labels of all spans but the outermost, each indented by how deep it lies."""
    level = {0: -2}
    lines = []
    for span in session.spans:
        level[span.id] = level[span.parent or 0] + 1
        if 0 <= level[span.id] <= depth:
            lines.append("  " * level[span.id] + span.label)
    return "\n".join(lines)


def of_kind(session: Session, kind: str) -> list[Span]:
    return [span for span in session.spans if span.kind == kind]


TEXT = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
    "allocate 1125899906842624 bytes. Error code 12 (Cannot allocate memory)"
)


def running_out(folder: Path, *, after: int = 2, evaluates: bool = False, **options: Any) -> Any:
    """Return a Trainer whose model runs out of memory after so many steps, or as it `evaluates`."""
    trainer = make_trainer(folder, num_train_epochs=2, **options)

    def fails(module: Any, *_: object) -> None:
        if not module.training if evaluates else trainer.state.global_step == after:
            raise RuntimeError(TEXT)

    trainer.model.lm_head.register_forward_hook(fails)
    return trainer


def watched(run: Callable[[], object], *, quiet: bool = True) -> Session:
    with (
        pytest.raises(RuntimeError, match="DefaultCPUAllocator"),
        hfmem_widget.watch("run", quiet=quiet) as session,
    ):
        run()
    return session
