"""What is advised after an out-of-memory error, from where on, and what it then says."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hfmem_widget.features.oom.advice import advise, remedies, savings
from hfmem_widget.features.oom.model import Advice, Cause, Incident, OomDiagnosis, Seen
from hfmem_widget.session import Contents
from hfmem_widget.text import GIB
from tests.data.oom_incidents import blocks, incident, spans

NAN = math.nan


def made_of(*, activations: float = 40.0, weights: float = 20.0, **counts: float) -> Incident:
    return incident(
        asked=10.0,
        free=1.0,
        parts={"weights": weights, "activations": activations, "cache": 1.0},
        path=spans("train", "step", "forward", **counts),
    )


def advice_of(words: str, known: Incident, cause: Cause = "unknown") -> Advice | None:
    """Return the advice whose action has these words, if a cause, or what takes memory, calls for it."""
    found = [*remedies(known, cause), *savings(known)]
    return next((one for one in found if words in one.action), None)


@pytest.mark.parametrize(
    ("samples", "longest", "activations", "said"),
    [
        (1, 512, 40.0, True),
        (1, 511, 40.0, False),
        (1, NAN, 40.0, False),
        (2, 4096, 40.0, False),
        (3, 4096, 40.0, False),
        (NAN, 4096, 40.0, True),
        (1, 4096, 10.0, False),
        (1, 4096, 11.0, True),
    ],
)
def test_a_sequence_is_to_be_shorter_where_it_is_the_whole_batch(
    samples: float, longest: float, activations: float, *, said: bool
) -> None:
    """Long, alone in its batch, and activations are what memory is taken by."""
    told = advice_of(
        "shorter sequences",
        made_of(activations=activations, samples=samples, longest=longest),
    )

    assert (told is not None) is said
    if told is not None:
        assert told.bytes == activations / 2 * GIB
        assert f"{longest:,.0f} tokens" in told.reason


@pytest.mark.parametrize(
    ("asked", "total", "words"),
    [
        (85.0, 80.0, "1.1\u00d7"),
        (200.0, 80.0, "2.5\u00d7"),
        (792.0, 80.0, "9.9\u00d7"),
        (800.0, 80.0, "10\u00d7"),
        (832.0, 80.0, "10\u00d7"),
        (100_000.0, 80.0, "1,250\u00d7"),
        (80.0, 80.0, ""),
        (40.0, 80.0, ""),
        (40.0, NAN, ""),
    ],
)
def test_a_request_larger_than_all_there_is_is_told_as_so_many_times(
    asked: float, total: float, words: str
) -> None:
    """Digits behind the point up to ten times; a request that might fit is to be made in pieces."""
    told = advice_of("in chunks", incident(asked=asked, free=1.0, total=total), "huge")

    assert told is not None
    if words:
        assert f" {words} " in told.reason
    else:
        assert told.action == "Process it in chunks"


@pytest.mark.parametrize(("cache", "said"), [(0.2, False), (0.25, True), (3.0, True)])
def test_the_cache_is_given_back_to_a_library_that_asked_beside_it(
    cache: float, *, said: bool
) -> None:
    """From a quarter of a GiB on; never where PyTorch itself asked, which empties its cache first."""
    parts = {"weights": 10.0, "cache": cache}
    for origin in ("cuda", "cudnn"):
        one = incident(asked=1.0, free=0.1, parts=parts, origin=origin)
        told = advice_of("empty_cache", one, "full")
        assert (told is not None) is (said and one.beside_the_allocator)


@pytest.mark.parametrize(("left", "said"), [(0, False), (5 * 2**30, True)])
def test_what_an_error_keeps_is_told(left: int, *, said: bool) -> None:
    """Where nothing else holds it, so that `%memfree errors` would free it."""
    known = incident(asked=1.0, free=0.1, seen=Seen(freed=left))
    told = advise(known, OomDiagnosis("unknown", "It is."))

    assert any("%memfree errors" in one.action for one in told) is said


@pytest.mark.parametrize(
    ("weights", "whole", "optimizes"), [(8.0, 2.0, True), (8.0, 1.9, False), (2.0, 30.0, True)]
)
def test_states_are_worth_a_word_from_a_fifth_on(
    weights: float, whole: float, *, optimizes: bool
) -> None:
    """Of what is allocated, or of themselves where they are still to come."""
    one = incident(
        asked=10.0,
        free=1.0,
        allocated=weights + 2.0,
        parts={"weights": weights, "activations": 2.0, "optimizer": whole},
        path=spans("train", "step", "forward"),
    )

    assert (advice_of("adafactor", one) is not None) is optimizes


@pytest.mark.parametrize(("weights", "said"), [(35.0, False), (37.0, True)])
def test_float32_weights_are_told_where_they_are_nearly_half(weights: float, *, said: bool) -> None:
    """Forty-five hundredths of the device."""
    contents = Contents(dtypes={"float32": int(weights * GIB)})
    known = replace(made_of(weights=weights), contents=contents, capability=(9, 0))
    told = advice_of("dtype=torch.bfloat16", known)

    assert (told is not None) is said
    if told is not None:
        assert told.bytes == weights / 2 * GIB


@pytest.mark.parametrize(
    ("private", "said"), [(None, False), (0.0, False), (9.9, False), (10.0, True), (11.0, True)]
)
def test_pools_are_to_be_let_go_of_where_they_keep_what_was_asked_for(
    private: float | None, *, said: bool
) -> None:
    """All of it: what is missing of it would be missing still."""
    known = None if private is None else blocks(1.0, 0.5, private_free=private * GIB)
    told = advice_of("memory pools", incident(asked=10.0, free=1.0, blocks=known), "fragmentation")

    assert (told is not None) is said
    if told is not None and private is not None:
        assert told.bytes == private * GIB


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        ((), False),
        ((512.0, 512.0), False),
        ((512.0, 767.0), False),
        ((512.0, 768.0), True),
        ((512.0, 2048.0), True),
    ],
)
def test_lengths_are_to_be_evened_where_they_differ_much(
    lengths: tuple[float, ...], *, said: bool
) -> None:
    """The longest against the shortest."""
    told = advice_of(
        "fixed lengths", incident(asked=10.0, free=1.0, lengths=lengths), "fragmentation"
    )

    assert (told is not None) is said
    if told is not None:
        assert f"512 to {lengths[1]:,.0f} tokens" in told.reason


@pytest.mark.parametrize(
    ("reserved", "asked", "share"),
    [
        (30.0, 9.0, "0.5"),
        (30.0, 10.0, "0.5"),
        (30.0, 11.0, "0.55"),
        (70.0, 9.0, "1"),
        (70.0, 11.0, "1"),
    ],
)
def test_a_limit_is_to_be_raised_to_what_is_needed(
    reserved: float, asked: float, share: str
) -> None:
    """In twentieths of the device, and to all of it at most."""
    told = advice_of(
        "Raise", incident(asked=asked, free=40.0, reserved=reserved, allowed=32.0), "limit"
    )

    assert told is not None
    assert f"set_per_process_memory_fraction({share})" in told.action


@pytest.mark.parametrize(
    ("others", "processes", "named", "saving"),
    [
        (30.0, (), "; nvidia-smi lists them", "30.0 GiB"),
        (30.0, ((7, GIB), (8, 9 * GIB)), ": process 8 (9.00 GiB), process 7 (1.00 GiB)", ""),
        (
            30.0,
            ((1, GIB), (2, 2 * GIB), (3, 3 * GIB), (4, 4 * GIB)),
            ": process 4 (4.00 GiB), process 3 (3.00 GiB), process 2 (2.00 GiB)",
            "",
        ),
    ],
)
def test_other_processes_are_named_by_how_much_they_take(
    others: float, processes: tuple[tuple[int, float], ...], named: str, saving: str
) -> None:
    """Three of them at most; where none is known, by what names them."""
    told = advice_of(
        "Stop", incident(asked=10.0, free=1.0, others=others, processes=processes), "others"
    )

    assert told is not None
    assert told.action == f"Stop other processes on the GPU{named}"
    assert (told.saving, told.bytes) == (saving, others * GIB)


@pytest.mark.parametrize(
    ("optimizer", "states", "said"),
    [
        ("AdamW", 20.0, True),
        ("FusedAdam", 20.0, True),
        ("SGD", 0.0, False),
        ("SGD", 20.0, False),
        ("Adafactor", 0.02, False),
        ("AdamW8bit", 10.0, False),
        ("Muon", 20.0, False),
    ],
)
def test_only_adam_is_to_be_replaced(optimizer: str, states: float, said: bool) -> None:
    """Of another optimizer it is not known what it would save; nor is it told to be replaced by itself."""
    known = incident(
        asked=10.0,
        free=1.0,
        parts={"weights": 20.0, "gradients": 20.0, "optimizer": states},
        path=spans("train", "step", "optimizer"),
        calls=("torch.optim.adamw._init_group", "torch.optim.adamw.step"),
        contents=Contents(optimizers=(optimizer,), parameters=10**9, trainable=10**9),
    )

    assert (advice_of("adafactor", known) is not None) is said
    assert (advice_of("fused", known) is not None) is said
