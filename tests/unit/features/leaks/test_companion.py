"""The names given for a leak, and the cases without a search for them."""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hfmem_widget.analysis.facts import findings_of
from hfmem_widget.features.leaks.companion import Leaks, with_holder
from hfmem_widget.features.leaks.trends import Trend
from hfmem_widget.features.leaks.who_added import Before
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Finding, Session, Span
from hfmem_widget.sources.heap import search
from hfmem_widget.sources.heap.model import Holder, Holders
from hfmem_widget.text import MIB
from tests.scenes import scripted_run
from tests.scenes.stage import NO_MONITOR, Stage

GPU = "cuda:0"


def leaking() -> Session:
    """Return a training that grows by 12 MiB a step."""
    stage = Stage("train", gpus=1)
    with stage.span("cell", "train"), stage.span("train", "train"):
        for step in range(1, 41):
            with stage.span("step", f"step {step}"):
                stage.hold({GPU: 12 * step * MIB}, 0.1)
    return stage.finish()


def row(path: str, mib: float, kind: Any = "tensors", **more: Any) -> Holder:
    options = {"device": GPU, "tensors": 40, **more}
    return Holder(path, kind, bytes=int(mib * MIB), shape=(1,), dtype="float32", **options)


NOTHING_BEFORE = Before(Holders(()))
"""It was noted that nothing was held when the watch began."""


def named(*rows: Holder, bound: str = "", before: Before = NOTHING_BEFORE) -> Finding:
    (finding,) = leaking().findings
    return with_holder(finding, Holders(rows, seconds=0.41, bound=bound), before)


def test_the_name_that_holds_most_of_it_is_given() -> None:
    """The sentence on the growth ends with the name, and the advice is about it."""
    finding = named(row("losses[0..39]", 400, graph_bytes=399 * 2**20, graphs=40), row("x", 150))

    assert finding.title.startswith("Allocated memory grows by 12.0 MiB a step since step 6")
    assert finding.title.endswith(
        "; losses[0..39] and the autograd graphs behind it hold 400.0 MiB."
    )
    assert "detached tensors in losses[0..39] (.detach()" in finding.advice[0]
    assert finding.advice[1] == "%memholders lists them all."
    assert finding.evidence["holder"] == "losses[0..39]"


LOSSES, DATA = row("losses[0..39]", 400), row("dataset[0..99]", 4000)
OLDER = Before(Holders((row("older[0..39]", 400), row("cache[0..9]", 100, pattern="cache[*]"))))


@pytest.mark.parametrize(
    ("rows", "before", "ending"),
    [
        ((DATA, LOSSES), NOTHING_BEFORE, "; losses[0..39] holds 400.0 MiB."),
        ((DATA,), NOTHING_BEFORE, "; what grows may be dataset[0..99] (3.91 GiB)."),
        (
            (row("older[0..39]", 400), row("cache[0..49]", 500, pattern="cache[*]")),
            OLDER,
            "; cache[0..49] holds 500.0 MiB, 400.0 MiB more than before.",
        ),
        (
            (row("trials[0..6].model", 140, "weights"),
             row("trials[0..6].optimizer", 280, "optimizer states")),
            NOTHING_BEFORE,
            "; trials holds 420.0 MiB.",
        ),
        (
            (row("a[0..39]", 220), row("b[0..39]", 200, "NumPy")),
            NOTHING_BEFORE,
            "; a[0..39] holds 220.0 MiB and b[0..39] holds 200.0 MiB.",
        ),
        ((LOSSES,), Before(), "; what grows may be losses[0..39] (400.0 MiB)."),
        ((row("cache['a', … 40 keys]", 400),), NOTHING_BEFORE, "; cache['a', … 40 keys] holds 400.0 MiB."),
    ],
    ids=["beside what was there", "most was there", "more than before", "one name", "two names",
         "nothing was noted", "a dict"],
)  # fmt: skip
def test_a_leak_names_its_holder(rows: tuple[Holder, ...], before: Before, ending: str) -> None:
    """With what it has more than before; where that is unknown, it is called possible."""
    finding = named(*rows, before=before)

    assert finding.title.endswith(ending)
    assert ("holder" in finding.evidence) is ("may be" not in ending)
    if "may be" in ending:
        assert "%memholders --since" in finding.advice[0]
    else:
        assert finding.advice[0].partition(" ")[0] in ending


@pytest.mark.parametrize(
    "holder",
    [
        row("model", 4000, "weights"),
        row("optimizer", 4000, "optimizer states"),
        row("big", 4000, tensors=1),
        row("elsewhere", 4000, device="cpu"),
        row("little", 90),
    ],
    ids=lambda one: one.path,
)
def test_memory_that_cannot_have_grown_step_by_step_is_not_blamed(holder: Holder) -> None:
    """Weights, one tensor, another device, or less than a quarter of the growth cannot be it."""
    finding = named(holder)

    assert "hold" not in finding.title
    assert finding.advice[0] == "%memholders lists what holds it."


def test_a_search_that_ended_early_says_so() -> None:
    """The advice admits that the search for the holder was cut short."""
    assert "ended early" in named(bound="the search ended early, for time").advice[-1]


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the options of each search, all of which find one name."""
    calls: list[dict[str, Any]] = []

    def scan(_namespace: Any, **options: Any) -> Holders:
        calls.append(options)
        return Holders((row("losses[0..39]", 400),))

    monkeypatch.setattr("hfmem_widget.sources.heap.scan.scan", scan)
    return calls


def test_names_are_looked_for_once_and_within_bounds(scans: list[dict[str, Any]]) -> None:
    """The finding with the name takes the place of the one without."""
    session = leaking()
    Leaks().report(session, session.spans[0])
    (finding,) = findings_of(session, session.spans[0])

    assert len(scans) == 1
    assert scans[0]["most_seconds"] <= 1.0
    assert "losses[0..39]" in finding.title


def test_holders_are_noted_when_the_watch_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that hold more at the end are named, and the notes keep no object alive."""
    monkeypatch.setattr(search, "user_modules", dict)
    module = SimpleNamespace(older=[torch.ones(2**20) for _ in range(10)])
    monkeypatch.setitem(sys.modules, "__main__", module)
    references = [sys.getrefcount(module.older), sys.getrefcount(module.older[0])]
    session, leaks = leaking(), Leaks()
    leaks.begin(NO_MONITOR, Stage("train", gpus=0).recorder, session.spans[0])
    references_after = [sys.getrefcount(module.older), sys.getrefcount(module.older[0])]
    module.cache = [torch.ones(2**20) for _ in range(10)]
    on_the_host = {**session.findings[0].evidence, "device": "cpu", "grown": 36 * MIB}
    session.findings[0] = replace(session.findings[0], evidence=on_the_host)
    leaks.report(session, session.spans[0])

    assert references_after == references
    assert session.findings[0].evidence["holder"] == "cache[0..9]"


@pytest.mark.parametrize(
    ("make", "options"),
    [(partial(scripted_run, "steps"), {}), (leaking, {"quiet": True})],
    ids=["a healthy cell", "a quiet watch, which has no card to show one"],
)
def test_a_holder_that_nobody_needs_is_not_searched_for(
    scans: list[dict[str, Any]], make: Callable[[], Session], options: dict[str, Any]
) -> None:
    """The findings stay as they are."""
    session, stage = make(), Stage("train", gpus=0)
    before, leaks = tuple(session.findings), Leaks(WatchOptions(**options))
    leaks.begin(NO_MONITOR, stage.recorder, session.spans[0])
    scans.clear()  # what is held at the beginning is noted if that is due
    leaks.end(stage.recorder, session.spans[0], None)
    leaks.report(session, session.spans[0])

    assert scans == []
    assert tuple(session.findings) == before


class Live:
    """A watched training, and the times at which its data were looked at."""

    def __init__(self, *, takes: float = 0.0) -> None:
        self.looks: list[float] = []
        self.stage = Stage("train", gpus=1)
        self.takes = takes
        self.now = 0.0
        self.leaks = Leaks(clock=lambda: self.now, look=self.look)

    def look(self, _session: Session, _span: Span) -> tuple[Trend, ...]:
        self.looks.append(self.now)
        self.now += self.takes
        return ()

    def run(self, ticks: int, *, with_steps: bool) -> None:
        recorder = self.stage.recorder
        with self.stage.span("cell", "train") as span:
            self.leaks.begin(NO_MONITOR, recorder, span)
            for _ in range(ticks):
                if with_steps:
                    with self.stage.span("step", "step"):
                        self.stage.hold({GPU: MIB}, 0.1)
                self.now += 0.1
                recorder.publish()
            self.leaks.end(recorder, span, None)


def test_data_are_looked_at_once_a_second_at_most_and_only_for_news() -> None:
    """There is about one look a second while steps end, and almost none while no step does."""
    busy, idle = Live(), Live()
    busy.run(50, with_steps=True)
    idle.run(50, with_steps=False)

    assert 4 <= len(busy.looks) <= 6
    assert len(idle.looks) <= 1
    assert busy.stage.recorder.subscribers == []


def test_a_look_that_takes_long_is_taken_seldom() -> None:
    """Looks take at most a hundredth of the time, however long a session is."""
    live = Live(takes=0.02)
    live.run(500, with_steps=True)

    assert 20 <= len(live.looks) <= 1 + 50 / 2


def test_growth_is_drawn_while_the_code_runs() -> None:
    """There is one line before the cell has ended, and it moves with each step."""
    stage = Stage("train", gpus=1)
    leaks = Leaks(clock=lambda: 20 * stage.clock.now)
    lines = []
    with stage.span("cell", "train") as span:
        leaks.begin(NO_MONITOR, stage.recorder, span)
        for step in range(1, 41):
            with stage.span("step", f"step {step}"):
                stage.hold({GPU: 12 * step * MIB}, 0.1)
            stage.recorder.publish()
            lines.append([one.last for one in stage.session.guides])
    stage.finish()

    assert lines[0] == []
    assert len(lines[-1]) == 1
    assert lines[20] < lines[-1]
    assert [one.kind for one in stage.session.guides] == ["trend"]
