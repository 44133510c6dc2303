"""What is worked out of sessions: ``python -m tests.data.worked_out`` writes `worked_out.txt` anew.

Sizes are in MiB; of sentences only the figures are kept. It is no longer than one reads through.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from hfmem_widget.analysis.anatomy import anatomy, end_of, peak_of
from hfmem_widget.analysis.record_of import record_of, whole
from hfmem_widget.errors import OptionError
from hfmem_widget.features.judgement import judge
from hfmem_widget.features.leaks.findings import guide_of
from hfmem_widget.features.leaks.trends import trends_of
from hfmem_widget.features.memory_map.html import sentences
from hfmem_widget.session import Anatomy, Session
from hfmem_widget.session.segments import Fragmentation, MemoryMap
from hfmem_widget.text import GIB, MIB
from tests.data.drawn import figures
from tests.data.drawn_scenes import GPU, MAP, SESSIONS
from tests.data.segments import segment
from tests.scenes.stage import Stage

FILE = Path(__file__).with_name("worked_out.txt")
NAN = math.nan


def size(value: float) -> str:
    return "-" if math.isnan(value) else f"{round(value / MIB, 5):.6g}"


def sizes(values: Iterable[float]) -> str:
    return " ".join(map(size, values))


def named(parts: Mapping[str, float]) -> str:
    return " ".join(f"{name}={size(value)}" for name, value in parts.items())


def told(one: Anatomy) -> str:
    parts = named({part.name: part.bytes for part in one.parts})
    notes = "; ".join(map(figures, one.notes))
    head = sizes((one.allocated, one.reserved, one.process))
    return (
        f"{one.device.key} {one.moment}, {one.time:g} s, {one.certainty}: {head}: {parts} ({notes})"
    )


def anatomies(make: Callable[[], Session]) -> Iterator[str]:
    """Yield what memory was made of at every moment that can be asked for."""
    session = make()
    for at in ("now", "peak", 1, 2, 3):
        for key in ("", session.devices[-1].key):
            try:
                yield f"{at}: {told(anatomy(session, at, key))}"
            except OptionError as error:
                yield f"{at}: {figures(str(error))}"
    for span in session.spans:
        device = session.devices[0]
        yield f"{span.kind} {span.label}, peak: {told(peak_of(session, span, device))}"
        yield f"{span.kind} {span.label}, end: {told(end_of(session, span, device))}"


def of_record(make: Callable[[], Session]) -> Iterator[str]:
    session = make()
    record = record_of(session, whole(session))
    pace = record.pace
    rates = (pace.steps_per_second, pace.samples_per_second, pace.tokens_per_second)
    yield f"{record.duration:g} s, {pace.steps} steps, {' '.join(f'{one:.5g}' for one in rates)}"
    for one in record.devices:
        edges = (one.before, one.after, one.left_behind, one.reserved_peak, one.headroom)
        yield f"{one.key}: {size(one.peak.value)} {one.peak.certainty}; {sizes(edges)}"
        yield f"{named(one.at_peak)}; {named(one.at_end)}"
        yield f"{one.curve.shape} {one.steps.shape} {np.nansum(one.curve) / MIB:.5g}"


def expandable() -> Fragmentation:
    one = segment(("used", 5), ("free", 50), ("used", 1), ("free", 3), ("used", 1), expandable=True)
    other = segment(("used", 40), ("free", 19), ("used", 1), ("free", 20), at=1, expandable=True)
    return MemoryMap((GPU,), (one, other), 0.1).fragmentation(GPU)


def of_fragmentation(make: Callable[[], Fragmentation]) -> Iterator[str]:
    found = make()
    yield named({part.name: part.bytes for part in found.parts})
    active = sum(found.bytes(name) for name in ("used", "rounding", "pending"))
    yield f"{sizes((found.reserved, active, found.fits))} {found.is_host} {found.expandable}"
    for place in found.places:
        yield f"{place.stream} {place.pool}: {sizes((place.reserved, place.free, place.fits))}"
    yield from (f"> {figures(one)}" for one in sentences(found))


def of_leaks(by: float) -> Iterator[str]:
    """Yield what is said of a training that keeps so many MiB after each of its steps."""
    session = growing(by)
    for one in judge(session, session.spans[0]).findings:
        evidence = " ".join(
            f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in one.evidence.items()
        )
        yield f"{one.severity}: {figures(one.title)} ({evidence})"
    for trend in trends_of(session):
        guide = guide_of(trend)
        ends = sizes((guide.first, guide.last, *guide.band))
        yield f"{figures(guide.label)}: {guide.start:g} {guide.stop:g} {ends}"


def growing(by: float) -> Session:
    stage = Stage("leak", gpus=1, interval=0.25)
    with stage.span("cell", "cell"), stage.span("train", "train"):
        for number in range(1, 31):
            with stage.span("step", f"step {number}") as span:
                stage.recorder.count(span.id, {"step": number, "tokens": 64.0})
                stage.hold({GPU: 3 * GIB + by * number * MIB}, 0.5)
                stage.hold({GPU: GIB + by * number * MIB}, 0.5)
    return stage.finish()


EVERY: dict[str, Callable[[], Iterator[str]]] = {
    "anatomies: two GPUs": partial(anatomies, SESSIONS["two GPUs"]),
    "record: two GPUs": partial(of_record, SESSIONS["two GPUs"]),
    **{f"{by} MiB a step": partial(of_leaks, by) for by in (0, 5, 900)},
    "fragmentation": lambda: of_fragmentation(lambda: MAP.fragmentation(GPU)),
    "fragmentation where segments grow": lambda: of_fragmentation(expandable),
}
"""What is kept, by name."""


def kept() -> dict[str, list[str]]:
    blocks = FILE.read_text(encoding="utf-8").strip().split("\n\n")
    return {head.removeprefix("== "): lines for head, *lines in map(str.splitlines, blocks)}


if __name__ == "__main__":
    text = "\n\n".join("\n".join((f"== {name}", *make())) for name, make in EVERY.items())
    FILE.write_text(text + "\n", encoding="utf-8")
