"""The advice after an out-of-memory error: its thresholds, and its texts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from hfmem_widget.features.oom.advice import advise, remedies, savings
from hfmem_widget.features.oom.model import Advice, Cause, Incident, OomDiagnosis, Seen
from hfmem_widget.session import Contents
from hfmem_widget.text import GIB
from tests.data.oom_incidents import blocks, incident, spans

NAN = math.nan
FULL: dict[str, Any] = {"asked": 10.0, "free": 1.0}


def training(kind: Any = "forward", *, counts: Any = None, **more: Any) -> Incident:
    """Return an error within a step, on a device of 80 GiB."""
    parts = {"weights": 20.0, "activations": 40.0, "cache": 1.0} | more.pop("parts", {})
    return incident(**FULL, parts=parts, path=spans("train", "step", kind, **counts or {}), **more)


def advice_of(words: str, known: Incident, cause: Cause = "unknown") -> Advice | None:
    """Return the advice whose action has these words, if a cause or a part of memory calls for it."""
    found = [*remedies(known, cause), *savings(known)]
    return next((one for one in found if words in one.action), None)


def floats(weights: float) -> Incident:
    known = training(parts={"weights": weights})
    contents = Contents(dtypes={"float32": int(weights * GIB)})
    return replace(known, contents=contents, capability=(9, 0))


def sequence(samples: float, longest: float, activations: float = 40.0) -> Incident:
    counts = {"samples": samples, "longest": longest}
    return training(counts=counts, parts={"activations": activations})


def optimized(name: str, states: float) -> Incident:
    return incident(
        **FULL,
        parts={"weights": 20.0, "gradients": 20.0, "optimizer": states},
        path=spans("train", "step", "optimizer"),
        calls=("torch.optim.adamw._init_group", "torch.optim.adamw.step"),
        contents=Contents(optimizers=(name,), parameters=10**9, trainable=10**9),
    )


def beside(origin: Any, cache: float) -> Incident:
    parts = {"weights": 10.0, "cache": cache}
    return incident(asked=1.0, free=0.1, parts=parts, origin=origin)


@pytest.mark.parametrize(
    ("words", "known", "cause", "gib"),
    [
        # A long sequence that is alone in its batch, where activations are what memory is taken by.
        ("shorter sequences", sequence(1, 512), "unknown", 20.0),
        ("shorter sequences", sequence(NAN, 4096), "unknown", 20.0),
        ("shorter sequences", sequence(1, 511), "unknown", None),
        ("shorter sequences", sequence(2, 4096), "unknown", None),
        ("shorter sequences", sequence(1, 4096, 10.0), "unknown", None),
        # Weights of float32 that take nearly half of the device.
        ("dtype=torch.bfloat16", floats(37.0), "unknown", 18.5),
        ("dtype=torch.bfloat16", floats(35.0), "unknown", None),
        # A library asked beside PyTorch's cache; PyTorch itself empties that first.
        ("empty_cache", beside("cudnn", 0.25), "full", 0.25),
        ("empty_cache", beside("cudnn", 0.2), "full", None),
        ("empty_cache", beside("cuda", 3.0), "full", None),
        # Private pools that have all of what was asked for.
        (
            "memory pools",
            incident(**FULL, blocks=blocks(1.0, 0.5, private_free=10 * GIB)),
            "fragmentation",
            10.0,
        ),
        (
            "memory pools",
            incident(**FULL, blocks=blocks(1.0, 0.5, private_free=9.9 * GIB)),
            "fragmentation",
            None,
        ),
        # Lengths of which the longest is half as long again.
        ("fixed lengths", incident(**FULL, lengths=(512.0, 768.0)), "fragmentation", 0.0),
        ("fixed lengths", incident(**FULL, lengths=(512.0, 767.0)), "fragmentation", None),
        # Adam's states alone: of another optimizer it is not known what it would save.
        ("fused", optimized("FusedAdam", 20.0), "unknown", 10.0),
        ("fused", optimized("SGD", 20.0), "unknown", None),
        ("adafactor", optimized("AdamW", 20.0), "unknown", 20.0),
        ("adafactor", optimized("FusedAdam", 20.0), "unknown", 20.0),
        ("adafactor", optimized("Adafactor", 0.02), "unknown", None),
        ("adafactor", optimized("AdamW8bit", 10.0), "unknown", None),
        ("adafactor", optimized("AdamW", 1.0), "unknown", None),
    ],
)
def test_advice_has_a_reason_and_a_saving(
    words: str, known: Incident, cause: Cause, gib: float | None
) -> None:
    """It is given only if it would help, with the bytes that it would save."""
    told = advice_of(words, known, cause)

    assert (None if told is None else told.bytes) == (None if gib is None else gib * GIB)


@pytest.mark.parametrize(
    ("asked", "total", "words"),
    [
        (85.0, 80.0, "1.1\u00d7"),
        (792.0, 80.0, "9.9\u00d7"),
        (800.0, 80.0, "10\u00d7"),
        (100_000.0, 80.0, "1,250\u00d7"),
        (80.0, 80.0, ""),
        (40.0, NAN, ""),
    ],
)
def test_a_request_beyond_the_device_is_given_as_a_multiple(
    asked: float, total: float, words: str
) -> None:
    """With a decimal up to ten times; a request that might fit should be made in pieces."""
    told = advice_of("in chunks", incident(asked=asked, free=1.0, total=total), "huge")

    assert told is not None
    if words:
        assert f" {words} " in told.reason
    else:
        assert told.action == "Process it in chunks"


@pytest.mark.parametrize(("left", "said"), [(0, False), (5 * 2**30, True)])
def test_memory_that_only_an_error_holds_is_named(left: int, *, said: bool) -> None:
    """`%memholders --free errors` would free it."""
    told = advise(incident(**FULL, seen=Seen(freed=left)), OomDiagnosis("unknown", "It is."))

    assert any("%memholders --free errors" in one.action for one in told) is said


@pytest.mark.parametrize(
    ("reserved", "asked", "share"), [(30.0, 10.0, "0.5"), (30.0, 11.0, "0.55"), (70.0, 11.0, "1")]
)
def test_a_limit_should_be_raised_to_the_need(reserved: float, asked: float, share: str) -> None:
    """In twentieths of the device, up to all of it."""
    limited = incident(asked=asked, free=40.0, reserved=reserved, allowed=32.0)
    told = advice_of("Raise", limited, "limit")

    assert told is not None
    assert f"set_per_process_memory_fraction({share})" in told.action


@pytest.mark.parametrize(
    ("processes", "named", "saving"),
    [
        ({}, "; nvidia-smi lists them", "30.0 GiB"),
        ({7: 1, 8: 9}, ": process 8 (9.00 GiB), process 7 (1.00 GiB)", ""),
        (
            {1: 1, 2: 2, 3: 3, 4: 4},
            ": process 4 (4.00 GiB), process 3 (3.00 GiB), process 2 (2.00 GiB)",
            "",
        ),
    ],
)
def test_other_processes_are_named_with_their_use(
    processes: dict[int, int], named: str, saving: str
) -> None:
    """At most three; if none is known, the tool that lists them."""
    listed = tuple((number, size * GIB) for number, size in processes.items())
    told = advice_of("Stop", incident(**FULL, others=30.0, processes=listed), "others")

    assert told is not None
    assert told.action == f"Stop other processes on the GPU{named}"
    assert (told.saving, told.bytes) == (saving, 30 * GIB)


def test_advice_says_a_size_once() -> None:
    """A saving that its reason has said already is not said again."""
    assert Advice("Free it", "it holds 5.00 GiB", "5.00 GiB").sentence() == (
        "Free it. It holds 5.00 GiB."
    )
