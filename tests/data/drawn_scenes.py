"""The scenes of `drawn`: sessions of a dozen samples, and cards with everything that a picture can have."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from hfmem_widget.analysis.cell import Cell
from hfmem_widget.analysis.record import NO_POINTS, NO_STEPS, Record, record_of, whole
from hfmem_widget.features.compare.api import of_runs
from hfmem_widget.features.compare.html import whole_bundle
from hfmem_widget.features.compare.model import Comparison
from hfmem_widget.features.fit.html import fit_bundle
from hfmem_widget.features.fit.model import Fit, Room, Verdict
from hfmem_widget.features.free.html import release_bundle
from hfmem_widget.features.holders.html import growth_bundle, holders_bundle
from hfmem_widget.features.memory_map.html import live_bundle, memory_map_bundle, moments_bundle
from hfmem_widget.features.stacks.html import stacks_bundle
from hfmem_widget.session import Contents, Device, Finding, Sample, Session, Span
from hfmem_widget.session.segments import MemoryMap
from hfmem_widget.session.stacks import StackRecording, Stacks
from hfmem_widget.sources.heap.model import Grown, Growth, Holders, Remainder
from hfmem_widget.text import GIB, MIB
from hfmem_widget.view.anatomy import anatomy_bundle
from hfmem_widget.view.card import card_bundle, session_bundle
from hfmem_widget.view.chart.figure import anatomy_dict, figure_dict
from hfmem_widget.view.chart.svg import chart_html, sparkline
from hfmem_widget.view.line import compact_bundle, lost_bundle
from tests.data.segments import heap, segment
from tests.scenes import scripted_run
from tests.scenes.stage import Stage
from tests.unit.features.fit.test_html import FORECAST
from tests.unit.features.free.test_api import DONE, RELEASED
from tests.unit.features.holders.test_html import LOSSES, MODEL
from tests.unit.features.oom.test_html import bundle, incident_named
from tests.unit.features.stacks.test_html import peak
from tests.unit.view.chart.test_guides import budget, crossing, oom, run, trend
from tests.unit.view.test_anatomy import WHOLE, made

Bundle = Mapping[str, str]
GPU = "cuda:0"
PARTS = {"weights": GIB, "gradients": 0.5 * GIB, "optimizer": 2 * GIB, "buffers": 40 * MIB}


def training(scale: float = 1.0, *, parts: bool = True, gap: bool = True) -> Session:
    """Return three steps within a cell, and a gap between the last two."""
    stage = Stage("fine-tune", gpus=1, interval=0.5)
    known = {name: size * scale for name, size in PARTS.items()} if parts else {}
    with stage.span("cell", "trainer.train()"):
        stage.hold({GPU: 4 * scale * GIB}, 1.0, known)
        with stage.span("train", "train"):
            for number, top in enumerate((6.0, 7.5, 6.5), start=1):
                with stage.span("step", f"step {number}") as span:
                    counts = {"step": number, "tokens": 512 * number, "samples": 4, "longest": 128}
                    stage.recorder.count(span.id, counts)
                    with stage.span("forward", "forward"):
                        stage.hold({GPU: top * scale * GIB}, 1.0)
                    with stage.span("backward", "backward"):
                        stage.hold({GPU: 4.5 * scale * GIB}, 0.5)
                if gap and number == 2:
                    stage.sleep_unsampled(1.5)
        stage.hold({GPU: 4.2 * scale * GIB}, 0.5)
    return stage.finish()


def two_gpus() -> Session:
    """Return a cell that fills two devices one after the other, the second in two runs."""
    stage = Stage("shard", gpus=2, interval=0.5)
    with stage.span("cell", "shard()"):
        for at in range(2):
            stage.hold({f"cuda:{at}": (3 + at) * GIB}, 1.0)
        stage.sleep_unsampled(1.0)
        stage.hold({"cuda:1": GIB}, 1.0)
    return stage.finish()


def elsewhere() -> Session:
    """Return a cell during which another process filled the device."""
    stage = Stage("wait", gpus=1, interval=0.5)
    with stage.span("cell", "wait()"):
        stage.hold_elsewhere({GPU: 30 * GIB}, 2.0)
        stage.hold_elsewhere({GPU: 20 * GIB}, 1.0)
    return stage.finish()


def compared(*, by: str = "", parts: bool = True) -> Comparison:
    """Return a cell that was run twice, and two others."""
    runs = {
        "base": [_kept("base", 1.0, 1, parts=parts), _kept("base", 1.1, 2, parts=parts)],
        "smaller": [_kept("smaller", 0.5, 3, parts=parts)],
        "larger": [_kept("larger", 1.5, 4, parts=parts)],
    }
    return of_runs(runs, by=by)


def _kept(label: str, scale: float, number: int, *, parts: bool) -> Record:
    session = training(scale, parts=parts, gap=parts)
    return record_of(session, whole(session), label=label, cell=Cell(number, "", ""))


SESSIONS: dict[str, Callable[[], Session]] = {
    "a training with a gap": training,
    "a training with guides": lambda: run(
        budget(6.0), trend(1.0, 5.0), oom(2.0), oom(5.5, gib=6.8), findings=(crossing(1.75),)
    ),
    "a line that breaks": lambda: training(parts=False),
    "a line alone": lambda: training(parts=False, gap=False),
    "nearly full": lambda: run(name="failed"),
    "nearly full, a budget near the end": lambda: run(budget(139.5), name="failed"),
    "nearly full, a budget that is crossed": lambda: run(budget(135.0), name="failed"),
    "two GPUs": two_gpus,
    "eight GPUs": lambda: scripted_run("eight gpus"),
    "the host": lambda: scripted_run("cpu"),
    "somebody else's": elsewhere,
}

MOMENTS = (WHOLE, made("now", weights=2, optimizer=4, rounding=0.01, cache=3, others=1, free=60))
FULL = (made(weights=40, activations=50, cache=2, context=1, others=2, free=5),)
OTHERS = (made(weights=1, others=90, free=9), made("now", Device("cpu", "EPYC"), weights=1))

MAP = MemoryMap(
    (GPU, "cuda:1"),
    (
        segment(("used", 30), ("free", 4), ("half", 6), ("pending", 2), ("used", 22)),
        segment(("free", 20), at=1),
        segment(("used", 12), ("free", 8), at=2, stream=7),
        segment(("used", 3), ("free", 5), at=3, pool=(0, 1)),
        *(segment(("used", 1), ("free", 1), at=at) for at in range(4, 40)),
    ),
    0.25,
    {"cuda:1": "it cannot be read"},
)

ROOM = Room(GPU, "H200", 80 * GIB, 10 * GIB, context=GIB)
FIT = Fit(
    "config",
    replace(FORECAST, trainable=1_000, notes=("A note.",)),
    (Verdict(ROOM, int(GIB), True, 5), Verdict(replace(ROOM, context=0), 0, False, 0)),
    0.1,
)
RAN_OUT = (
    "pieces of segments",
    "a limit on this process",
    "another process has most",
    "more than the device has",
    "a limit of the shell",
    "losses kept",
)
"""Words of the incidents' names."""

GROWTH = Growth(
    (
        Grown("losses[0..99]", "tensors", GPU, int(40 * MIB), 100, int(50 * MIB)),
        Grown("model", "weights", GPU, int(9 * MIB), -1, int(90 * MIB)),
        Grown("small", "tensors", GPU, 1000, 1, 2000),
        Grown("x", "tensors", "cpu", int(2 * MIB), 1, int(2 * MIB)),
    ),
    freed=int(3 * MIB),
    seconds=0.5,
)
HOLDERS = Holders((LOSSES, MODEL), (Remainder(GPU, 70.0 * MIB, False),), 0.25, 1234)
LIVE = Stacks(
    (peak(4), peak(9, "cuda:1")), StackRecording("allocator", seconds=0.5, began=1.0), b"x"
)


def _span(make: Callable[[], Session], draw: Callable[..., Any]) -> Callable[[], Any]:
    def drawn() -> Any:
        session = make()
        return draw(session, session.spans[0])

    return drawn


def _chart(session: Session, span: Span) -> list[Bundle]:
    return [{"text/html": chart_html(session, span)}]


def _line(session: Session, span: Span) -> list[Bundle]:
    return [{"text/html": sparkline(session, span)}]


def _cards(session: Session, span: Span) -> list[Bundle]:
    return [card_bundle(session, span, with_chart=True), compact_bundle(session, span)]


def _ran_out(words: str) -> Callable[[], list[Bundle]]:
    return lambda: [bundle(incident_named(words), earlier=2)]


NAN = math.nan
Way = Literal["allocator", "operators"]
SEVERITIES: tuple[Literal["info", "warn", "critical"], ...] = ("info", "warn", "critical")


def of_everything() -> Session:
    """Return a cell with more phases, findings and notes than are shown, and missed samples."""
    stage = Stage("everything", gpus=2, interval=0.5)
    with stage.span(
        "cell", "a cell with a name that is rather long, as names may be", "interrupted"
    ):
        for at in range(11):
            with stage.span("block", f"block {at}"):
                stage.hold({GPU: (1 + at % 4) * GIB, "cuda:1": 2 * GIB}, 0.3)
        for number in range(1, 5):
            with stage.span("step", f"step {number}") as span:
                counts = {"step": number, "tokens": 100 * number, "largest_batch": 60.0 * number}
                stage.recorder.count(span.id, counts)
                with stage.span("forward", "forward"):
                    stage.hold({GPU: (3 + number % 3) * GIB}, 0.4)
                with stage.span("optimizer", "optimizer"):
                    stage.hold({GPU: 3 * GIB + 8 * MIB}, 0.2)
    session = stage.finish()
    session.notes += [f"Note {at}. {'It is long. ' * 40 * (at == 1)}" for at in range(5)]
    session.polling.missed, session.polling.ticks, session.polling.longest_gap = 30, 100, 2.6
    session.polling.stopped = "the device is gone"
    session.guides += (budget(8.0), budget(8.0, "cuda:1"), budget(3.0))
    session.findings += [
        Finding("leak", SEVERITIES[at % 3], f"Finding {at}: {at}.00 GiB.", {"device": GPU},
                tuple(f"Advice {n} of 7" for n in range(at)), span_id=session.spans[0].id)
        for at in range(14)
    ]  # fmt: skip
    session.contents = Contents(
        ("LlamaForCausalLM", "A", "B", "C", "D"), ("AdamW",), 7_000_000, 6_000_000,
        {"float32": 900, "bfloat16": 100}, 12, 3,
    )  # fmt: skip
    return session


def cards(session: Session) -> list[Bundle]:
    span = session.spans[0]
    return [
        card_bundle(session, span, with_chart=False),
        compact_bundle(session, span),
        session_bundle(session),
    ]


def open_card() -> list[Bundle]:
    session = training()
    span = Span(
        len(session.spans) + 1, "cell", "open", session.last_sample.time, session.last_sample
    )
    session.last_sample = Sample(20.0, session.last_sample.values)
    session.timeline.append(20.0, session.last_sample.values)
    session._spans.add(span)
    return [card_bundle(session, span, with_chart=False), compact_bundle(session, span)]


def recorded(way: Way = "allocator", began: float = 0.0) -> StackRecording:
    return StackRecording(way, began, 0.5, 0.2, ("A note.",))


WRAPPED = replace(peak(3), requested=5.0 * MIB, wrapped=True, since=2.0)
EXACT = replace(
    peak(2),
    device="cuda:1",
    allocated=float(peak(2).bytes),
    requested=float(peak(2).bytes),
    time=NAN,
)
ON_THE_HOST = replace(peak(1), device="cpu", allocated=NAN, requested=NAN)
UNKNOWN = replace(peak(1), allocated=NAN, requested=NAN)

WIDE = Room(GPU, "H200", 80 * GIB, 10 * GIB)
VERDICTS = (
    Verdict(WIDE, 0, True, 1 << 20),
    Verdict(replace(WIDE, free=7 * GIB), 0, False, 3),
    Verdict(replace(WIDE, free=NAN), 0, None, None),
    Verdict(WIDE, int(9 * GIB), None, None),
)
SETTING = replace(
    FORECAST.setting,
    accumulation=4,
    checkpointing=True,
    lora=(8, ()),
    quantized="4 bits",
    optimizer="adam",
)
MANY = tuple(
    replace(
        LOSSES, path=f"x{at}", bytes=int((40 - at) * MIB), graph_bytes=int(at % 2 * MIB), also=()
    )
    for at in range(30)
)


MANY_HOLDERS = Holders((*MANY, MODEL), (Remainder("cpu", 3 * GIB, True),), 2.0, 10**6, "Cut.")
GROWN = tuple(Grown(f"x{at}", "tensors", GPU, int((50 - at) * MIB), at, 0) for at in range(40))
SEGMENTS = tuple(segment(("used", 1 + at % 7), ("free", 1 + at % 3), at=at) for at in range(300))
NOTED = replace(made(weights=1, cache=0.001), notes=("One.", "Two 2.00 GiB."))


def compared_without_lines() -> Bundle:
    """Return cells of which only the parts are known."""
    records = {}
    for name, scale in (("a", 1.0), ("b", 2.0)):
        session = training(scale)
        record = record_of(session, whole(session), label=name)
        bare = [replace(one, curve=NO_POINTS, steps=NO_STEPS) for one in record.devices]
        records[name] = [replace(record, devices=tuple(bare))]
    return whole_bundle(of_runs(records))


PAGES: dict[str, Callable[[], list[Bundle]]] = {
    **{f"chart of {name}": _span(one, _chart) for name, one in SESSIONS.items()},
    **{f"line of {name}": _span(one, _line) for name, one in [*SESSIONS.items()][1:3]},
    **{f"card of {name}": _span(one, _cards) for name, one in SESSIONS.items()},
    **{f"out of memory: {name}": _ran_out(name) for name in RAN_OUT},
    "anatomy": lambda: [anatomy_bundle(MOMENTS)],
    "anatomy of a full device": lambda: [anatomy_bundle(FULL)],
    "anatomy beside others": lambda: [anatomy_bundle(OTHERS)],
    "memory map": lambda: [memory_map_bundle(MAP)],
    "memory map, live": lambda: [live_bundle(MAP)],
    "comparison by step": lambda: [whole_bundle(compared())],
    "comparison by time": lambda: [whole_bundle(compared(by="time", parts=False))],
    "fit": lambda: [fit_bundle(FIT)],
    "growth": lambda: [growth_bundle(GROWTH)],
    "holders": lambda: [holders_bundle(HOLDERS, detail=True)],
    "live at the peak": lambda: [stacks_bundle(LIVE)],
    "freed": lambda: [release_bundle(RELEASED), release_bundle(DONE)],
    "a card with everything": lambda: cards(of_everything()),
    "cards of a cell that goes on": open_card,
    "a card whose end was not seen": lambda: [lost_bundle("cell")],
    "live, the record wrapped": lambda: [
        stacks_bundle(Stacks((WRAPPED, EXACT), recorded(began=0.05), b"x"))
    ],
    "live, on the host": lambda: [stacks_bundle(Stacks((ON_THE_HOST,), recorded("operators")))],
    "live, not known": lambda: [stacks_bundle(Stacks((UNKNOWN,), recorded(began=0.04)))],
    "live, nothing": lambda: [stacks_bundle(Stacks((), recorded()))],
    "fits, and does not": lambda: [
        fit_bundle(Fit("m", replace(FORECAST, setting=SETTING, left_out=("a",)), VERDICTS, 0.05))
    ],
    "cells without lines": lambda: [compared_without_lines()],
    "a map of several moments": lambda: [moments_bundle((("before", MAP), ("after", heap())))],
    "a map of many segments": lambda: [memory_map_bundle(MemoryMap((GPU,), SEGMENTS, 1.5))],
    "many holders": lambda: [holders_bundle(MANY_HOLDERS)],
    "no holders": lambda: [holders_bundle(Holders(()))],
    "much growth": lambda: [growth_bundle(Growth(GROWN, bound="Cut."))],
    "an anatomy with notes": lambda: [
        anatomy_bundle([NOTED, made("now", weights=2)], title="A title", contents="Contents")
    ],
}
"""What each page shows, by name."""

FIGURES: dict[str, Callable[[], dict[str, Any]]] = {
    **{name: _span(one, figure_dict) for name, one in SESSIONS.items()},
    "too short": lambda: figure_dict(Session("short")),
    "anatomy": lambda: anatomy_dict(MOMENTS),
}
"""Name and figure of each."""
