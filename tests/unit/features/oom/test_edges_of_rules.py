"""Where a rule begins to speak, and what it then says: each threshold from both sides."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from hfmem_widget.features.compare.align import by_step, by_time
from hfmem_widget.features.leaks.comparable_points import ComparablePoints, comparable_points
from hfmem_widget.features.leaks.findings import guide_of
from hfmem_widget.features.leaks.trends import Trend, _after_drop, _explains_better
from hfmem_widget.features.memory_map.model import MemoryMap
from hfmem_widget.features.memory_map.sentences import sentences
from hfmem_widget.features.oom.advice import advise, remedies, savings
from hfmem_widget.features.oom.diagnosis import is_logits
from hfmem_widget.features.oom.errors import MOST_ERRORS, about_memory
from hfmem_widget.features.oom.incident import failure_of
from hfmem_widget.features.oom.model import Advice, Cause, Diagnosis, Incident, ModelFacts, Seen
from hfmem_widget.session import Contents, Sample
from hfmem_widget.text import GIB, MIB
from tests.data.oom_incidents import blocks, incident, spans
from tests.data.parted import Script
from tests.data.segments import segment
from tests.scenes.stage import Stage
from tests.unit.features.memory_map.test_holes import found_in

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
    told = advise(known, Diagnosis("unknown", "It is."))

    assert any("%memfree errors" in one.action for one in told) is said


@pytest.mark.parametrize(
    ("readings", "begin"),
    [((5.0, 1.0), 1), ((1.0, 5.0), 0), ((5.0,), 0), ((8.0, 4.0, 8.0, 6.0), 1)],
)
def test_of_two_readings_the_second_may_be_a_drop(readings: tuple[float, ...], begin: int) -> None:
    """A drop needs one before it and nothing after it."""
    assert _after_drop(np.array(readings)) == begin


@pytest.mark.parametrize(
    ("rows", "holes"),
    [
        ([(5.0, 8.0, 2.5, 0, 0), (6.0, 8.0, NAN, 0, 0)], 2.0),
        ([(5.0, 8.0, 2.5, 0, 0), (NAN, 8.0, 7.0, 0, 0)], 2.5),
        ([(5.0, 8.0, 2.5, 0, 0), (5.5, 8.0, 2.2, 0, 0)], 2.2),
    ],
)
def test_holes_are_those_of_the_fullest_moment_that_is_known(
    rows: list[tuple[float, ...]], holes: float
) -> None:
    """A moment of which either figure is missing is passed over."""
    (finding,) = found_in(*rows)

    assert finding.evidence["holes"] == pytest.approx(holes * GIB)


def test_a_trends_band_is_as_wide_as_its_slope_is_unsure() -> None:
    """Half of the range of the slope, over half of its length, at both ends alike."""
    trend = Trend(
        "cpu", "a step", 1, first=10, last=110, start=0.5, stop=9.0, slope=5.0, low=4.0, high=8.0,
        intercept=100.0, grown=500.0, spread=1.0, points=100,
    )  # fmt: skip
    guide = guide_of(trend)

    assert guide.band == (100.0, 100.0)
    assert (guide.first, guide.last) == (150.0, 650.0)
    assert (guide.start, guide.stop, guide.device) == (0.5, 9.0, "cpu")


def test_runs_by_time_have_their_line_between_far_readings() -> None:
    """Columns stand at their middles; where one has no reading, it has what lies between its neighbours'."""
    sparse = np.array([[0.0, 1.0, 7.0, 8.0], [1.0, 2.0, 8.0, 9.0]])
    short = np.array([[0.0, 4.0], [3.0, 3.0]])
    line = by_time([sparse, short], 4)

    assert line.at.tolist() == [1.0, 3.0, 5.0, 7.0]
    assert line.high.tolist() == [3.0, 4.0, 6.0, 9.0]
    assert line.low.tolist() == [2.0, 3.0, 3.0, 9.0]


def test_a_run_that_knows_nothing_leaves_the_others() -> None:
    """A curve of breaks alone is none."""
    known = np.array([[0.0, 1.0, 2.0], [1.0, 2.0, 3.0]])
    none = np.array([[0.0, 1.0, 2.0], [NAN, NAN, NAN]])
    line = by_time([known, none], 2)

    assert line.middle.tolist() == line.high.tolist() == line.low.tolist() == [1.0, 3.0]


@pytest.mark.parametrize(("width", "at"), [(1, [1.0, 2.0, 3.0, 4.0]), (2, [1.5, 3.5]), (4, [2.5])])
def test_steps_stand_in_the_middle_of_those_they_stand_for(width: int, at: list[float]) -> None:
    """A point of one step stands at its number."""
    table = np.array([[n, n, 1.0, float(n), n] for n in range(1, 5)])
    line = by_step([table], width)

    assert line.at.tolist() == at
    assert line.high.tolist() == [float(n * width) for n in range(1, len(at) + 1)]


def test_a_steps_peak_is_looked_for_as_deep_as_its_spans_lie() -> None:
    """In the pass within a batch within the step, whose edges tell what was held."""
    script = Script()
    script.read(allocated=2 * GIB, reserved=4 * GIB, weights=GIB)
    with script.span("train"), script.span("step", counts={"step": 1}):
        script.read()
        with script.span("substep"):
            script.read()
            with script.span("forward", peak=6 * GIB) as forward:
                script.read()
    found = script.session.anatomy(at=1)

    assert found.time == forward.start
    assert found.allocated == 6 * GIB


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
    ("around", "found"), [(0, True), (MOST_ERRORS - 1, True), (MOST_ERRORS, False)]
)
def test_an_error_is_looked_for_among_so_many(around: int, *, found: bool) -> None:
    """That what it was raised from is about memory is found through a few others, not through any number."""
    inner: BaseException = MemoryError("no room")
    one = inner
    for at in range(around):
        outer = ValueError(str(at))
        outer.__cause__ = one
        one = outer

    reason = about_memory(one)
    assert (reason is not None and reason[0] is inner) is found


@pytest.mark.parametrize(
    ("streams", "said"),
    [
        ((7,), "60.0 MiB is free for stream 0x7 alone"),
        ((7, 8), "120.0 MiB is free for 2 streams, for each alone"),
    ],
)
def test_what_is_free_for_other_streams_says_for_how_many(
    streams: tuple[int, ...], said: str
) -> None:
    """One is named."""
    made = [segment(("used", 40), ("free", 60), at=at, stream=at) for at in streams]
    found = MemoryMap(("cuda:0",), (segment(("used", 100)), *made), 0.01)
    told = list(sentences(found.fragmentation("cuda:0")))

    assert [one for one in told if one.startswith(said)] != [], told


@pytest.mark.parametrize(
    ("within", "first", "better"),
    [
        ((7.0, 0.0, 0.0), 0.0, True),
        ((6.9, 0.0, 0.0), 0.0, False),
        ((7.0, 0.0, 0.0), 0.1, False),
        ((5.0, 1.0, 1.0), 0.0, True),
        ((NAN, 7.0, NAN), 0.0, True),
    ],
)
def test_growth_is_the_evaluations_where_most_is_made_within_them(
    within: tuple[float, ...], first: float, *, better: bool
) -> None:
    """Seven tenths of it, in those since it began; else it is that of the steps between them."""
    steps = Trend(
        "cpu", "a step", 1, 0, 9, first, 9.0, 1, 1, 1, 0.0, grown=10.0, spread=1, points=9
    )
    there = replace(steps, what="an evaluation")
    time = np.array([0.0, 3.0, 6.0])
    points = ComparablePoints("cpu", "an evaluation", 1, time, time, time, time, np.array(within))

    assert _explains_better(there, steps, {}, points) is better


@pytest.mark.parametrize(("grown", "better"), [(9.0, False), (10.0, False), (11.0, True)])
def test_of_two_rows_of_steps_the_one_that_grew_more_is_told(grown: float, *, better: bool) -> None:
    """The first of equals."""
    known = Trend("cpu", "a step", 1, 0, 9, 0.0, 9.0, 1, 1, 1, 0.0, grown=10.0, spread=1, points=9)
    nothing = np.empty(0)
    points = ComparablePoints("cpu", "a step", 1, nothing, nothing, nothing, nothing, nothing)

    assert _explains_better(replace(known, grown=grown), known, {}, points) is better


@pytest.mark.parametrize(
    ("tokens", "asked", "said"), [(0, 0.001, False), (NAN, 0.001, False), (1000, 0.1, True)]
)
def test_of_no_tokens_there_are_no_logits(tokens: float, asked: float, *, said: bool) -> None:
    """A small request is not taken for them."""
    one = incident(
        asked=asked,
        free=0.01,
        path=spans("train", "step", tokens=tokens),
        model=ModelFacts(vocabulary=26843),
    )

    assert is_logits(one) is said


def test_what_came_within_an_evaluation_is_what_was_there_after_it_and_not_before() -> None:
    """Of each of them."""
    stage = Stage("run", gpus=1)
    with stage.span("cell", "run"):
        for number in range(20):
            with stage.span("evaluate", "evaluate"):
                stage.hold({"cuda:0": (500 + 30 * number) * MIB}, 0.1)
            stage.hold({"cuda:0": (520 + 30 * number) * MIB}, 0.1)
    (row,) = [one for one in comparable_points(stage.finish()) if one.what == "an evaluation"][:1]

    assert row.device == "cuda:0"
    assert row.within.tolist()[1:] == pytest.approx([10 * MIB] * 19)


@pytest.mark.parametrize(
    ("numbers", "rows"),
    [
        ([*range(1, 25)], [24]),
        ([*range(1, 13), *range(1, 13)], [12, 12]),
        ([*range(5, 17), *range(9, 21)], [12, 12]),
        ([*range(5, 17), *range(16, 28)], [12, 12]),
        ([*range(5, 17), *range(17, 29)], [24]),
    ],
)
def test_a_training_that_was_resumed_is_a_row_of_its_own(
    numbers: list[int], rows: list[int]
) -> None:
    """Where its numbers do not go on after those before it."""
    stage = Stage("run", gpus=1)
    with stage.span("cell", "run"), stage.span("train", "train"):
        for number in numbers:
            with stage.span("step", f"step {number}") as span:
                stage.recorder.count(span.id, {"step": float(number)})
                stage.hold({"cuda:0": (500 + number) * MIB}, 0.1)
    found = [one for one in comparable_points(stage.finish()) if one.what == "a step"]

    assert [len(one) for one in found if one.device == "cuda:0"] == rows


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


class OddConfig:
    """A configuration that has nothing yet."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class Odd(torch.nn.Module):  # type: ignore[misc]  # torch is not checked here
    """A model whose configuration cannot be read."""

    def __init__(self) -> None:
        super().__init__()
        self.config = OddConfig()


def test_an_odd_model_costs_no_explanation() -> None:
    """What the others say is told."""
    usual = torch.nn.Module()
    usual.gradient_checkpointing = True
    failure = failure_of(
        torch.OutOfMemoryError("CUDA out of memory."),
        Sample(0.0, ()),
        [Odd(), usual],
        ran_out=False,
    )

    assert failure is not None
    assert failure.model.checkpointing
