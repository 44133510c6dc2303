"""`--budget`: one warning, with when, where and by how much; `--stop` ends a Trainer's training alone."""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from hfmem_widget.features import judge
from hfmem_widget.features.budget.companion import (
    NO_STEP_LEFT,
    NONE_TO_STOP,
    NOT_ALONE,
    Budget,
    should_end,
)
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Finding, Guide, SpanKind
from hfmem_widget.text import GIB
from hfmem_widget.view.chart.scene import build_scene
from tests.data.recorders import cell_of, read, recorder_of
from tests.scenes.stage import NO_MONITOR, Stage


class Watched:
    """A stage that is watched with a budget; the poller's ticks are made by hand."""

    def __init__(self, gpus: int = 1, **options: Any) -> None:
        self.stage = Stage("run", gpus=gpus)
        self.recorder, self.session = self.stage.recorder, self.stage.session
        self.budget = Budget(WatchOptions(**{"budget": 20 * GIB, **options}))
        self._cell = self.stage.span("cell", "run")
        self.budget.begin(NO_MONITOR, self.recorder, self._cell.__enter__())

    def hold(self, size: float, seconds: float = 0.1, device: str = "cuda:0") -> None:
        """Move a device to so many GiB, and tick."""
        self.stage.hold({device: size * GIB}, seconds)
        self.tick()

    def tick(self) -> None:
        self.stage.sample()
        self.recorder.publish()

    def pass_by(self, size: float) -> None:
        """Reach so many GiB and come back, unsampled."""
        key = "cuda:0/allocated"
        before = self.session.latest(key)
        self.stage._move({key: before}, {key: size * GIB}, 1.0)
        self.stage._move({key: size * GIB}, {key: before}, 1.0)

    def end(self) -> list[Finding]:
        self.budget.end(self.recorder, self.session.spans[0], None)
        self._cell.__exit__(None, None, None)
        self.budget.report(self.session, self.session.spans[0])
        return self.session.findings


def test_a_crossed_budget_is_one_finding() -> None:
    """While the cell runs it has the bytes of that instant, afterwards the exact peak."""
    watched = Watched()
    watched.hold(19.0, seconds=2.0)
    assert watched.session.findings == []
    watched.hold(21.0)
    (live,) = watched.session.findings
    assert (live.kind, live.severity, live.advice) == ("budget", "warn", ())
    assert live.title == "cuda:0 exceeded its budget of 20.0 GiB after 2.1 s: 21.0 GiB allocated"
    watched.hold(23.1)
    watched.hold(1.0)
    (finding,) = watched.end()
    assert finding.title == (
        "cuda:0 exceeded its budget of 20.0 GiB after 2.1 s, by 3.10 GiB at its peak"
    )
    assert finding.evidence["peak"] == round(23.1 * GIB)
    assert finding.span_id == watched.session.spans[0].id


def test_the_chart_marks_when_it_was_crossed() -> None:
    """Its time counts from the start of the session, which may be older than the cell."""
    watched = Watched()
    watched.hold(19.0, 0.5)
    watched.hold(21.0, 0.5)
    (finding,) = watched.end()
    scene = build_scene(watched.session, columns=100)
    assert scene is not None
    (line,) = scene.guides
    assert finding.evidence["time"] == line.crossed_at == pytest.approx(1.0, abs=0.2)


Spans = Sequence[tuple[SpanKind, str]]


@pytest.mark.parametrize(
    ("spans", "place"),
    [
        ([("train", "train"), ("step", "step 41"), ("forward", "forward")], "in step 41 (forward)"),
        ([("evaluate", "evaluate at step 10")], "in evaluate at step 10"),
        ([("step", "step")], "in step 2, by"),
    ],
)
def test_the_finding_names_the_step_or_evaluation(spans: Spans, place: str) -> None:
    """The step with its phase; steps without a number are counted."""
    watched = Watched()
    for size in (1.0, 21.0):
        with ExitStack() as within:
            for kind, label in spans:
                within.enter_context(watched.stage.span(kind, label))
            watched.hold(size)
    assert f", {place}" in watched.end()[0].title


def test_the_exact_peak_of_a_step_shows_a_crossing_between_samples() -> None:
    """It is found at the end of the step, before the end of the cell."""
    watched = Watched()
    for size in (1.0, 22.0):
        with watched.stage.span("step", "step"):
            watched.pass_by(size)
    (live,) = watched.session.findings
    assert live.title == (
        "cuda:0 exceeded its budget of 20.0 GiB between two samples, in step 2: 22.0 GiB allocated"
    )
    assert watched.end()[0].title.endswith("in step 2, by 2.00 GiB at its peak")


def test_the_exact_peak_of_a_cell_shows_a_crossing_outside_of_steps() -> None:
    """A crossing that no sample saw is found at the end, without a time."""
    watched = Watched()
    watched.pass_by(22.0)
    assert watched.session.findings == []
    (finding,) = watched.end()
    assert finding.title == (
        "cuda:0 exceeded its budget of 20.0 GiB between two samples, by 2.00 GiB at its peak"
    )
    assert math.isnan(float(str(finding.evidence["seconds"])))


def test_a_cell_that_begins_above_its_budget_says_so() -> None:
    """The finding comes at once, and does not speak of a crossing."""
    stage = Stage("run", gpus=1)
    stage.hold({"cuda:0": 25 * GIB}, 0.1)
    budget = Budget(WatchOptions(budget=20 * GIB))
    with stage.span("cell", "run") as span:
        budget.begin(NO_MONITOR, stage.recorder, span)
    (finding,) = stage.session.findings
    assert finding.title == (
        "cuda:0 exceeded its budget of 20.0 GiB from the start: 25.0 GiB allocated"
    )


@pytest.mark.parametrize(
    ("gpus", "options", "keys"),
    [
        (1, {}, []),
        (0, {}, ["cpu"]),
        (1, {"devices": ("cpu",)}, ["cpu"]),
        (2, {"devices": ("cuda:1",)}, []),
    ],
)
def test_a_host_may_have_the_budget(gpus: int, options: dict[str, Any], keys: list[str]) -> None:
    """Beside a GPU the heap may exceed the budget without a finding."""
    watched = Watched(gpus, budget=0.1 * GIB, **options)
    watched.tick()
    assert [finding.title.partition(" exceeded")[0] for finding in watched.end()] == keys


def test_only_devices_that_were_asked_for_have_it() -> None:
    """With devices chosen by name, only theirs is a budget that can be crossed."""
    watched = Watched(2, devices=("cuda:1",))
    watched.hold(30.0)
    assert watched.session.findings == []
    watched.hold(30.0, device="cuda:1")
    assert watched.end()[0].title.startswith("cuda:1 exceeded")


def test_a_budget_is_a_line_over_each_gpus_chart() -> None:
    """There is one line for each GPU, however many ticks there are."""
    watched = Watched(2)
    watched.tick()
    watched.tick()
    assert watched.session.guides == [
        Guide(key, "budget", "budget 20.0 GiB", 0.0, math.inf, 20 * GIB, 20 * GIB)
        for key in ("cuda:0", "cuda:1")
    ]


def test_a_training_is_to_end_after_the_step_that_crossed_it() -> None:
    """`--stop` ends the training after that step, and the finding says so; no subscriber is left."""
    watched = Watched(stop=True)
    assert not should_end(1, alone=True)
    with watched.stage.span("step", "step 2"):
        watched.pass_by(22.0)
    assert should_end(2, alone=True)
    (finding,) = watched.end()
    assert finding.title.endswith("; training was ended after step 2, with a checkpoint")
    assert finding.evidence["ended_after_step"] == 2
    assert finding.advice == ()
    assert watched.recorder.subscribers == []
    assert not should_end(3, alone=True)


def test_a_training_that_follows_is_ended_only_for_what_it_does_itself() -> None:
    """A crossing ends one training; the next one ends only if it crosses anew."""
    watched = Watched(stop=True)
    watched.hold(22.0)
    watched.hold(1.0)
    assert should_end(1, alone=True)
    assert not should_end(1, alone=True)
    watched.hold(22.0)
    assert should_end(2, alone=True)
    watched.end()


def test_the_advice_says_why_no_training_was_ended() -> None:
    """There was no Trainer, no step after it, or there were other processes; `--stop` asks for it."""
    cases: list[tuple[dict[str, Any], bool | None, tuple[str, ...]]] = [
        ({}, True, ()),
        ({"stop": True}, None, (NONE_TO_STOP,)),
        ({"stop": True}, False, (NOT_ALONE,)),
    ]
    for options, alone, advice in cases:
        watched = Watched(**options)
        watched.hold(22.0)
        assert alone is None or not should_end(1, alone=alone)
        assert watched.end()[0].advice == advice
    late = Watched(stop=True)
    should_end(1, alone=True)
    late.hold(22.0)
    assert late.end()[0].advice == (NO_STEP_LEFT,)


def run_cell(stage: Stage, *levels: float, ask: bool = False) -> None:
    """Run a cell with a budget of 20 GiB that holds some GiB one after the other."""
    budget = Budget(WatchOptions(budget=20 * GIB, stop=True))
    with stage.span("cell", "run") as span:
        budget.begin(NO_MONITOR, stage.recorder, span)
        for level in levels:
            stage.hold({"cuda:0": level * GIB}, 0.1)
            stage.sample()
            stage.recorder.publish()
        if ask:
            assert should_end(7, alone=True)
        budget.end(stage.recorder, span, None)
    budget.report(stage.session, stage.session.span(span.id))


def test_a_budget_that_stays_crossed_is_found_once_in_each_cell() -> None:
    """The next cell begins above it; one that ends a training says so too."""
    stage = Stage("run", gpus=1)
    findings = stage.session.findings
    run_cell(stage, 19.0, 21.0)
    run_cell(stage, 22.0, 23.0)
    assert [finding.evidence["seen"] for finding in findings] == ["in a sample", "at the start"]
    run_cell(stage, 22.0, ask=True)
    assert "training was ended after step 7" in findings[2].title
    for levels in ((10.0,), (9.0,), (22.0, 1.0)):
        run_cell(stage, *levels)
    assert len(findings) == 5
    assert len({finding.span_id for finding in findings}) == 5
    assert len(stage.session.guides) == 1


METRICS = ("allocated", "reserved", "device_used")


@pytest.mark.parametrize(
    ("budget", "values", "title"),
    [
        ("90%", (73 * GIB, 0.0, 0.0), "its budget of 72.0 GiB "),
        ("reserved=50%", (1.0, 41 * GIB, 0.0), "its budget of 40.0 GiB reserved "),
        ("device=75GiB", (1.0, 1.0, 76 * GIB), "its budget of 75.0 GiB in use on the device "),
    ],
)
def test_a_budget_may_be_a_share_and_of_another_metric(
    budget: str, values: tuple[float, ...], title: str
) -> None:
    """It is compared with that metric on each device, which the title names."""
    recorder = recorder_of((0.0, 0.0, 0.0), metrics=METRICS)
    span = recorder.open_span("cell", "cell", recorder.session.last_sample)
    companion = Budget(WatchOptions(budget=budget))
    companion.begin(NO_MONITOR, recorder, span)
    read(recorder, 1.0, values)
    recorder.publish()

    assert title in recorder.session.findings[0].title


def nearly_full(*reserved: float, device: str = "cuda") -> list[Finding]:
    """Return the findings on a cell that ends with so many GiB reserved on each device of 80 GiB."""
    keys = [f"cuda:{at}" for at in range(len(reserved))] if device == "cuda" else [device]
    values = (value * GIB for size in reserved for value in (min(60, size), size, size))
    session, span = cell_of((GIB,) * 3 * len(keys), tuple(values), keys=keys, metrics=METRICS)
    judge(session, span)
    judge(session, span)
    return [each for each in session.findings if each.kind == "near_limit"]


@pytest.mark.parametrize(
    ("reserved", "amounts"), [(76, ["4.00 GiB left"]), (80, ["nothing left"]), (70, [])]
)
def test_a_nearly_full_gpu_is_said_without_a_budget(reserved: float, amounts: list[str]) -> None:
    """A GPU gets one finding above 92 % at its peak, the host none."""
    findings = nearly_full(reserved)

    assert [finding.evidence["device"] for finding in findings] == ["cuda:0"] * len(amounts)
    assert all(words in finding.title for finding, words in zip(findings, amounts, strict=True))
    assert nearly_full(reserved, device="cpu") == []


def test_devices_that_are_nearly_full_share_a_finding() -> None:
    """One sentence names how many there are and the fullest."""
    (finding,) = nearly_full(75, 77, 9)

    assert finding.title.startswith("2 devices were nearly full, cuda:1 most of all: 96 %")
