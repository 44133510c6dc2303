"""The shape of a batch, from what a model is called with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hfmem_widget.monitor.batch import see_batch, seen_batch, shape_of
from tests.data.timeouts import TimeIsUpError, time_is_up


class FakeTensor:
    """Has a shape and a place; its values may be read on the host only."""

    def __init__(self, *shape: Any, device: str = "cpu") -> None:
        self.shape = shape
        self.device = SimpleNamespace(type=device)

    def numpy(self) -> float:
        """Wait for the GPU."""
        pytest.fail("this would wait for the GPU")


IDS = FakeTensor(4, 128)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {"input_ids": IDS}),
        ((torch.zeros(4, 128, dtype=torch.int64),), {"labels": IDS}),
        (({"input_ids": IDS},), {}),
        ((), {"inputs_embeds": FakeTensor(4, 128, 768)}),
        ((), {"input_features": FakeTensor(4, 128, 80), "attention_mask": FakeTensor(4, 1500)}),
    ],
)
def test_sequences_have_samples_a_length_and_tokens(args: Any, kwargs: Any) -> None:
    """However the batch is handed over, its first two dimensions are counted."""
    assert shape_of(args, kwargs) == {"samples": 4.0, "longest": 128.0, "tokens": 512.0}


def test_a_compiled_models_arguments_have_the_names_of_the_model_itself() -> None:
    """What torch.compile returns takes ``*args`` alone."""
    model = torch.compile(torch.nn.Linear(2, 3), backend="eager")
    see_batch(model, (torch.zeros(4, 2),), {}, {"samples": 4.0}, is_training=True)
    seen = seen_batch(model, is_training=True)

    assert seen is not None
    assert seen.given == {"input": ((4, 2), torch.float32)}


def test_a_mask_on_the_host_tells_the_tokens_without_padding() -> None:
    """Its sum is the content."""
    mask = torch.zeros(4, 128, dtype=torch.int64)
    mask[:3, :100] = 1

    assert shape_of((), {"input_ids": IDS, "attention_mask": mask})["content_tokens"] == 300.0


def test_a_mask_on_a_gpu_is_never_read() -> None:
    """Reading it would wait for everything that is queued."""
    mask = FakeTensor(4, 128, device="cuda")

    assert "content_tokens" not in shape_of((), {"input_ids": IDS, "attention_mask": mask})


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((FakeTensor(32, 3, 224, 224),), {}), ((), {"pixel_values": FakeTensor(32, 3, 224, 224)})],
)
def test_images_are_counted_as_samples(args: Any, kwargs: Any) -> None:
    """They have no tokens."""
    assert shape_of(args, kwargs) == {"samples": 32.0}


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((7,), {}),
        ((None,), {"input_ids": None}),
        ((), {"input_ids": [1, 2]}),
        ((), {"input_ids": FakeTensor()}),
        ((), {"input_ids": FakeTensor(object(), object())}),
    ],
)
def test_unknown_arguments_count_nothing(args: Any, kwargs: Any) -> None:
    """Whatever a model is called with, nothing is raised."""
    assert shape_of(args, kwargs) == {}


@pytest.mark.usefixtures("timeout")
def test_an_exception_of_a_signal_handler_is_not_lost() -> None:
    """It comes at any instant, also while a batch is read, and is for the user's code."""

    class Interrupted:
        @property
        def shape(self) -> tuple[int, ...]:
            time_is_up()
            return 4, 128

    with pytest.raises(TimeIsUpError):
        shape_of((), {"input_ids": Interrupted()})


def test_a_sample_under_vmap_is_no_batch() -> None:
    """Its shape is that of one of the samples, of which nobody here knows how many there are."""
    seen: list[dict[str, float]] = []

    def of_one(row: torch.Tensor) -> torch.Tensor:
        seen.append(shape_of((row[None],), {}))
        return row.sum()

    torch.vmap(of_one)(torch.ones(64, 8))

    assert seen == [{}]
