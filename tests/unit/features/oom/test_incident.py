"""The figures of an out-of-memory error: its device, its request, and the readings."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from hfmem_widget.features.oom.errors import OutOfMemoryText
from hfmem_widget.features.oom.html import batch, where
from hfmem_widget.features.oom.incident import (
    SAME_WITHIN,
    belongs_to,
    device_of,
    failure_of,
    incident_of,
)
from hfmem_widget.features.oom.model import Failure, ModelFacts
from hfmem_widget.features.oom.observer import BACKWARD, OomEvent
from hfmem_widget.session import Sample, Session
from hfmem_widget.text import GIB
from tests.data.oom_incidents import incident, spans
from tests.data.parted import NAN
from tests.data.recorders import recorder_of

METRICS = ("allocated", "reserved", "others")


def session_of(*readings: tuple[float, float, float]) -> tuple[Session, Sample]:
    """Return a session of GPUs of 80 GiB and its reading: `METRICS` of each in GiB."""
    values = tuple(value * GIB for reading in readings for value in reading)
    keys = [f"cuda:{at}" for at in range(len(readings))]
    session = recorder_of(values, keys=keys, metrics=METRICS).session
    return session, session.last_sample


@pytest.mark.parametrize(
    ("used", "said", "key"),
    [
        ((1.0, 2.0), "", "cuda:1"),
        ((NAN, 0.5), "", "cuda:1"),
        ((0.0, NAN), "", "cuda:0"),
        ((1.0, 2.0), "cuda:0", "cuda:0"),
        ((1.0, 2.0), "xpu:3", "xpu:3"),
    ],
)
def test_an_error_is_about_the_gpu_that_has_most(
    used: tuple[float, ...], said: str, key: str
) -> None:
    """Unless its text names the GPU."""
    session, _ = session_of(*((size, size + 1, 0.0) for size in used))

    assert device_of(session, OutOfMemoryText("cuda", said), None).key == key


def test_the_limit_of_apples_allocator_is_its_capacity() -> None:
    """It recommends a limit, and has no other figure."""
    session, sample = session_of((1.0, 2.0, 0.0))
    text = OutOfMemoryText("mps", "mps:0", allowed=20 * GIB, total=5.0)
    found = incident_of(session, Failure(text, sample))

    assert found.total == 20 * GIB
    assert math.isnan(found.allowed)


@pytest.mark.parametrize(
    ("processes", "in_use", "sampled", "foreign", "others"),
    [
        ({1: 60, 2: 10}, NAN, NAN, [1], 60),
        ({1: 60, 2: 11}, NAN, NAN, [1], 60),
        ({1: 60, 2: 12}, NAN, NAN, [1, 2], 72),
        ({1: 60, 2: 8}, NAN, NAN, [1, 2], 68),
        ({1: 10, 2: 10}, NAN, NAN, [2], 10),
        ({2: 10}, NAN, NAN, [], 0),
        ({2: 10}, NAN, 5, [], 5),
        ({1: 60}, 9, 5, [1], 60),
        ({2: 10}, 9, 5, [2], 10),
        ({}, 20, NAN, [], 50),
        ({}, 75, NAN, [], 0),
        ({}, NAN, NAN, [], 61),
    ],
)
def test_use_by_others_comes_from_the_best_source(
    processes: dict[int, float], in_use: float, sampled: float, foreign: list[int], others: float
) -> None:
    """Of 70 GiB in use this process has 9, and up to 2 for CUDA; in a container it has another id."""
    session, sample = session_of((8.0, 9.0, sampled))
    listed = tuple((number, size * GIB) for number, size in processes.items())
    text = OutOfMemoryText(
        "cuda", "cuda:0", total=80 * GIB, free=10 * GIB, in_use=in_use * GIB, processes=listed
    )
    found = incident_of(session, Failure(text, sample))

    assert [number for number, _ in found.processes] == foreign
    assert found.others == others * GIB


@pytest.mark.parametrize(("used", "others"), [(10.9, NAN), (11.1, 2.1)])
def test_a_little_beyond_what_is_reserved_may_be_a_context(used: float, others: float) -> None:
    """Then its owner is unknown."""
    session, sample = session_of((8.0, 9.0, NAN))
    text = OutOfMemoryText("cuda", "cuda:0", total=80 * GIB, free=(80 - used) * GIB)
    found = incident_of(session, Failure(text, sample))

    assert found.others == pytest.approx(others * GIB, nan_ok=True)


@pytest.mark.parametrize(
    ("asked", "device", "origin", "same"),
    [
        (1.0, "cuda:0", "cuda", True),
        (1.0 + SAME_WITHIN, "cuda:0", "cuda", True),
        (1.0 + 2 * SAME_WITHIN, "cuda:0", "cuda", False),
        (NAN, "", "cuda", True),
        (NAN, "", "no batch size", True),
        (NAN, "cuda:1", "cuda", False),
        (NAN, "", "cublas", False),
    ],
)
def test_an_error_belongs_to_an_event_of_the_same_size(
    asked: float, device: str, origin: Any, *, same: bool
) -> None:
    """And of the same device; a text has two decimals, and may have no size."""
    event = OomEvent("cuda:0", GIB, 80 * GIB, 0.0)

    assert belongs_to(OutOfMemoryText(origin, device, asked * GIB), event) is same


class OddConfig:
    """A configuration that is not filled yet."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class Model:
    """A model whose own fields have its settings; its properties may do anything."""

    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)

    @property
    def is_gradient_checkpointing(self) -> bool:
        raise AssertionError("not to be run")

    def modules(self) -> list[Any]:
        return [self]


def test_settings_of_models_are_read_from_their_fields() -> None:
    """None of their code runs; a model with an unreadable configuration is skipped."""
    config = SimpleNamespace(vocab_size=50_000, quantization_config=None)
    failure = failure_of(
        MemoryError(),
        Sample(0.0, ()),
        [Model(config=OddConfig()), Model(config=config, gradient_checkpointing=True)],
        ran_out=False,
    )

    assert failure is not None
    assert failure.model == ModelFacts(checkpointing=True, vocabulary=50_000, quantized=False)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"samples": 8, "longest": 512, "tokens": 4096}, "8 \u00d7 512 tokens"),
        ({"samples": 8, "longest": 512, "tokens": 4095}, "4,095 tokens"),
        ({"samples": 0, "longest": 512, "tokens": 0}, ""),
        ({"samples": 1}, "1 sample"),
        ({"samples": 2, "longest": 0, "tokens": 0}, "2 samples"),
        ({}, ""),
    ],
)
def test_a_batch_is_described_as_far_as_known(counts: dict[str, float], words: str) -> None:
    """Samples by tokens if the product is right; otherwise the figure that is known."""
    assert batch(incident(asked=1.0, free=0.5, path=spans("step", **counts))) == words


IN_BACKWARD = (BACKWARD, "torch._tensor.backward", "__main__.train")
AGAIN = ("torch.nn.functional.linear", "torch.utils.checkpoint.unpack_hook", BACKWARD)


@pytest.mark.parametrize(
    ("calls", "open_spans", "words"),
    [
        ((), ("train", "step", "forward"), ("train", "step 3", "forward")),
        (IN_BACKWARD, (), ("backward pass",)),
        (AGAIN, (), ("backward pass", "checkpoint recomputation")),
        (AGAIN, ("train", "backward"), ("train", "backward", "checkpoint recomputation")),
        # Around the backward pass there is a checkpoint, but nothing of it was run there.
        ((BACKWARD, "torch.utils.checkpoint.backward"), (), ("backward pass",)),
        (("torch.nn.functional.linear", "__main__.train"), (), ()),
    ],
)
def test_the_place_of_an_error_is_named_once(
    calls: tuple[str, ...], open_spans: Any, words: tuple[str, ...]
) -> None:
    """From the outside in, without the cell; the backward pass also without a span."""
    one = incident(asked=1.0, free=0.5, calls=calls, path=spans(*open_spans, step=3))

    assert where(one) == words
