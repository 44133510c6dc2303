"""The shape of a batch, from what a model is called with."""

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
        pytest.fail("this would wait for the GPU")


IDS = FakeTensor(4, 128)


SEQUENCES = {"samples": 4.0, "longest": 128.0, "tokens": 512.0}
IMAGES = {"samples": 32.0}


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((), {"input_ids": IDS}, SEQUENCES),
        ((torch.zeros(4, 128, dtype=torch.int64),), {"labels": IDS}, SEQUENCES),
        (({"input_ids": IDS},), {}, SEQUENCES),
        ((), {"inputs_embeds": FakeTensor(4, 128, 768)}, SEQUENCES),
        (
            (),
            {"input_features": FakeTensor(4, 128, 80), "attention_mask": FakeTensor(4, 1500)},
            SEQUENCES,
        ),
        ((FakeTensor(32, 3, 224, 224),), {}, IMAGES),
        ((), {"pixel_values": FakeTensor(32, 3, 224, 224)}, IMAGES),
        ((), {}, {}),
        ((7,), {}, {}),
        ((None,), {"input_ids": None}, {}),
        ((), {"input_ids": [1, 2]}, {}),
        ((), {"input_ids": FakeTensor()}, {}),
        ((), {"input_ids": FakeTensor(object(), object())}, {}),
    ],
)
def test_a_batch_is_counted_in_any_form(args: Any, kwargs: Any, expected: dict[str, float]) -> None:
    """Sequences have samples, a length and tokens; images have samples alone; all else has nothing."""
    assert shape_of(args, kwargs) == expected


def test_a_compiled_models_arguments_have_the_names_of_the_model_itself() -> None:
    """The arguments of a compiled model, which takes ``*args``, have the names of the model's own."""
    model = torch.compile(torch.nn.Linear(2, 3), backend="eager")
    see_batch(model, (torch.zeros(4, 2),), {}, {"samples": 4.0}, is_training=True)
    batch = seen_batch(model, is_training=True)

    assert batch is not None
    assert batch.given == {"input": ((4, 2), torch.float32)}


def test_the_items_of_a_step_are_no_part_of_its_batch() -> None:
    """A Trainer gives their number to replicas, once for each."""
    model = torch.nn.Linear(2, 3)
    given = {"input": torch.zeros(4, 2), "num_items_in_batch": torch.ones(2)}
    see_batch(model, (), given, {"samples": 4.0}, is_training=True)
    batch = seen_batch(model, is_training=True)

    assert batch is not None
    assert batch.given == {"input": ((4, 2), torch.float32)}


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (torch.tensor([[1] * 100 + [0] * 28] * 3 + [[0] * 128]), 300.0),
        (FakeTensor(4, 128, device="cuda"), None),
    ],
    ids=["on the host", "on a GPU"],
)
def test_a_mask_on_the_host_tells_the_tokens_without_padding(mask: Any, expected: object) -> None:
    """A mask on a GPU is not read, as that would wait for everything that is queued."""
    counts = shape_of((), {"input_ids": IDS, "attention_mask": mask})

    assert counts.get("content_tokens") == expected


@pytest.mark.usefixtures("timeout")
def test_an_exception_of_a_signal_handler_is_not_lost() -> None:
    """An exception of a signal handler passes, also while a batch is read."""

    class Interrupted:
        @property
        def shape(self) -> tuple[int, ...]:
            time_is_up()
            return 4, 128

    with pytest.raises(TimeIsUpError):
        shape_of((), {"input_ids": Interrupted()})


def test_a_sample_under_vmap_is_no_batch() -> None:
    """Its shape is that of one of the samples, of which nobody here knows how many there are."""
    shapes: list[dict[str, float]] = []

    def see_row(row: torch.Tensor) -> torch.Tensor:
        shapes.append(shape_of((row[None],), {}))
        return row.sum()

    torch.vmap(see_row)(torch.ones(64, 8))

    assert shapes == [{}]
