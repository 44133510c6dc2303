"""More of what `drawn` draws: cards that have everything that a card may have, and much of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from hfmem_widget.analysis.record import no_points, no_steps
from hfmem_widget.analysis.record_of import record_of, whole
from hfmem_widget.features.compare.api import of_runs
from hfmem_widget.features.compare.html import whole_bundle
from hfmem_widget.features.fit.html import fit_bundle
from hfmem_widget.features.fit.model import Fit, Room, Verdict
from hfmem_widget.features.holders.html import growth_bundle, holders_bundle
from hfmem_widget.features.memory_map.html import memory_map_bundle, moments_bundle
from hfmem_widget.features.stacks.html import stacks_bundle
from hfmem_widget.session import Contents, Device, Finding, Recorder, Sample, Series, Session, Span
from hfmem_widget.session.segments import MemoryMap
from hfmem_widget.session.stacks import StackRecording, Stacks
from hfmem_widget.sources.heap.model import Grown, Growth, Holders, Remainder
from hfmem_widget.text import GIB, MIB
from hfmem_widget.view.anatomy import anatomy_bundle
from hfmem_widget.view.card import card_bundle
from hfmem_widget.view.line import compact_bundle, lost_bundle
from hfmem_widget.view.session import session_bundle
from tests.data.drawn_scenes import GPU, MAP, Bundle, training
from tests.data.segments import heap, segment
from tests.scenes.stage import Stage
from tests.unit.features.fit.test_html import FORECAST
from tests.unit.features.holders.test_html import LOSSES, MODEL
from tests.unit.features.stacks.test_html import peak
from tests.unit.view.chart.test_guides import budget
from tests.unit.view.test_anatomy import made

NAN = math.nan
Way = Literal["allocator", "operators"]
SEVERITIES: tuple[Literal["info", "warn", "critical"], ...] = ("info", "warn", "critical")


def of_everything() -> Session:
    """Return a cell with more phases, findings and notes than are in sight, and missed samples."""
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


def two_moved() -> Session:
    """Return a cell in which others filled two devices, each by as much."""
    recorder = Recorder("wait")
    session = recorder.session
    devices = [Device(f"cuda:{at}", "NVIDIA H200", total=100 * GIB) for at in range(2)]
    metrics = ("allocated", "device_used", "process")
    recorder.adopt(devices, [Series(one.key, metric) for one in devices for metric in metrics])
    recorder.append(Sample(0.0, (0.0, GIB, NAN) * 2))
    span = recorder.open_span("cell", "wait()", session.last_sample)
    for at in range(1, 8):
        recorder.append(Sample(float(at), (0.0, at * GIB, NAN, 0.0, 1.01 * at * GIB, NAN)))
    recorder.close_span(span.id, session.last_sample, {})
    return session


def a_slow_leak() -> Session:
    """Return a cell that kept little, of much."""
    stage = Stage("leak", gpus=1, interval=0.5)
    stage.certainty = "at least"
    stage.hold({GPU: 100 * GIB}, 0.1)
    with stage.span("cell", "cell", "failed"):
        stage.hold({GPU: 100 * GIB + 3 * MIB}, 0.6)
    return stage.finish()


def cards(session: Session) -> list[Bundle]:
    span = session.spans[0]
    return [
        card_bundle(session, span, with_chart=False),
        compact_bundle(session, span),
        session_bundle(session),
    ]


def open_card() -> list[Bundle]:
    """Return the cards of a cell that goes on."""
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

ROOM = Room(GPU, "H200", 80 * GIB, 10 * GIB)
VERDICTS = (
    Verdict(ROOM, 0, True, 1 << 20),
    Verdict(replace(ROOM, free=7 * GIB), 0, False, 3),
    Verdict(replace(ROOM, free=NAN), 0, None, None),
    Verdict(ROOM, int(9 * GIB), None, None),
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


def compared_without_lines() -> Bundle:
    """Return cells of which the parts alone are known."""
    records = {}
    for name, scale in (("a", 1.0), ("b", 2.0)):
        session = training(scale)
        record = record_of(session, whole(session), label=name)
        bare = [replace(one, curve=no_points(), steps=no_steps()) for one in record.devices]
        records[name] = [replace(record, devices=tuple(bare))]
    return whole_bundle(of_runs(records))


CARDS: dict[str, Callable[[], list[Bundle]]] = {
    "a card with everything": lambda: cards(of_everything()),
    "cards of two devices that others filled": lambda: cards(two_moved()),
    "cards of a slow leak": lambda: cards(a_slow_leak()),
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
    "a map of many segments": lambda: [
        memory_map_bundle(
            MemoryMap(
                (GPU,),
                tuple(
                    segment(("used", 1 + at % 7), ("free", 1 + at % 3), at=at) for at in range(300)
                ),
                1.5,
            )
        )
    ],
    "many holders": lambda: [
        holders_bundle(
            Holders((*MANY, MODEL), (Remainder("cpu", 3 * GIB, True),), 2.0, 10**6, "Cut.")
        )
    ],
    "no holders": lambda: [holders_bundle(Holders(()))],
    "much growth": lambda: [
        growth_bundle(
            Growth(
                tuple(
                    Grown(f"x{at}", "tensors", GPU, int((50 - at) * MIB), at, 0) for at in range(40)
                ),
                bound="Cut.",
            )
        )
    ],
    "an anatomy with notes": lambda: [
        anatomy_bundle(
            [
                replace(made(weights=1, cache=0.001), notes=("One.", "Two 2.00 GiB.")),
                made("now", weights=2),
            ],
            title="A title",
            contents="Contents",
        )
    ],
}
"""What each page shows, by name."""
