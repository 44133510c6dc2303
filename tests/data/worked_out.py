"""What is worked out of sessions: ``python -m tests.data.worked_out`` writes `worked_out.txt` anew.

Sizes are in MiB; of sentences only the figures are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from hfmem_widget.analysis.anatomy import anatomy, devices_with_parts, end_of, peak_of
from hfmem_widget.analysis.parts import parts_of
from hfmem_widget.analysis.record_of import record_of, whole
from hfmem_widget.errors import OptionError
from hfmem_widget.features.compare.align import AlignedLine, by_step, by_time, steps_a_point
from hfmem_widget.features.compare.model import Comparison
from hfmem_widget.features.judgement import judge
from hfmem_widget.features.leaks.findings import guide_of
from hfmem_widget.features.leaks.trends import trends_of
from hfmem_widget.features.memory_map.fragmentation import Fragmentation
from hfmem_widget.features.memory_map.model import MemoryMap
from hfmem_widget.features.memory_map.segments import Segment
from hfmem_widget.features.memory_map.sentences import sentences
from hfmem_widget.session import Anatomy, Session
from hfmem_widget.text import GIB, MIB
from tests.data.drawn import figures
from tests.data.drawn_scenes import GPU, MAP, SESSIONS, compared
from tests.data.parted import Script
from tests.scenes.stage import Stage
from tests.unit.features.memory_map.test_html_read_back import segment

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
    yield f"parts of {' '.join(one.key for one in devices_with_parts(session))}"
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


def open_session() -> Session:
    """Return a training whose step is open, and whose passes have no peak of their own."""
    script = Script()
    script.read(allocated=GIB, reserved=2 * GIB, weights=GIB, device_used=3 * GIB, context=GIB / 2)
    with script.span("cell"):
        with script.span("block"):
            script.read(allocated=3 * GIB, gradients=GIB, unattributed=0.0)
        script.read(allocated=2 * GIB, optimizer=GIB / 4)
    session = script.session
    script.recorder.open_span("cell", "cell", script.read())
    script.recorder.open_span("step", "step", script.read(allocated=5 * GIB))
    script.read(allocated=4 * GIB, others=GIB)
    return session


def _in_bytes(read: Mapping[str, float], metric: str) -> float:
    return read.get(metric, NAN) * MIB


def of_readings() -> Iterator[str]:
    """Yield the parts of readings in which each figure is missing, nothing, or more than all."""
    usual = {"allocated": 10, "reserved": 14, "requested": 9, "active": 11, "device_used": 20}
    usual |= {"driver_reserved": 1, "context": 2, "others": 3, "before": 1, "unattributed": 1}
    usual |= {"weights": 3, "gradients": 2, "optimizer": 1, "buffers": 1}
    for is_host in (False, True):
        for name in usual:
            for value in (NAN, 0.0, 4.0, 10.0, 100.0):
                read = {**usual, name: value}
                found = parts_of(partial(_in_bytes, read), 32 * MIB, is_host=is_host)
                yield f"{'host' if is_host else GPU} {name} {value:g}: " + named(
                    {part.name: part.bytes for part in found}
                )


def lines(one: AlignedLine) -> str:
    rows = zip(one.at, one.low, one.middle, one.high, strict=True)
    return " | ".join(" ".join(f"{value:.5g}" for value in row) for row in rows)


def of_runs() -> Iterator[str]:
    """Yield runs laid over each other, by step and by time."""
    table = np.array([[1, 2, 3, 5, 2], [3, 3, 4, 4, 3], [4, 7, 1, 9, 6], [8, 8, 2, 2, 8]], float)
    later = table + np.array([3, 3, 1, 1, 3])
    for tables in ([table], [table, later], [later, table[:1]]):
        for most in (3, 8, 100):
            width = steps_a_point(tables, most)
            yield f"of {width} steps: {lines(by_step(tables, width))}"
    curve = np.array([[0, 1, 2, 4, 7], [1, 5, NAN, 3, 2]], float)
    other = np.array([[0.5, 3, 9], [2, 2, 6]], float)
    nothing = np.array([[0.0, 5.0], [NAN, NAN]])
    for curves in ([curve], [curve, other], [other, nothing], [nothing[:, :0], curve]):
        for columns in (2, 5):
            yield f"in {columns}: {lines(by_time(curves, columns))}"


def of_comparison(one: Comparison) -> Iterator[str]:
    frame = one.to_pandas()
    for name in frame:
        values = " ".join(str(v) if isinstance(v, str) else f"{v:.5g}" for v in frame[name])
        yield f"{name}: {values}"
    yield f"by {one.by}, {one.steps_a_point} a point; {'; '.join(map(figures, one.notes))}"
    for cell in one.cells:
        told = [one.difference(cell, name) for name in cell.figures]
        yield f"{cell.name}: " + " ".join(f"{d.value:.5g}/{d.percent:.4g}%" for d in told)


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


def heap() -> Fragmentation:
    one = segment(("used", 20), ("free", 6), ("used", 4), ("free", 10))
    mapped = segment(("used", 40), at=1)
    found = (_of(one, "heap"), _of(mapped, "mapped"))
    return MemoryMap(("cuda:0",), found, 0.1).fragmentation(GPU)


def _of(one: Segment, kind: str) -> Segment:
    return Segment(one.device, one.address, one.size, kind, one.blocks)  # type: ignore[arg-type]


def expandable() -> Fragmentation:
    one = segment(("used", 5), ("free", 50), ("used", 1), ("free", 3), ("used", 1), expandable=True)
    other = segment(("used", 40), ("free", 19), ("used", 1), ("free", 20), at=1, expandable=True)
    return MemoryMap((GPU,), (one, other), 0.1).fragmentation(GPU)


def of_fragmentation(make: Callable[[], Fragmentation]) -> Iterator[str]:
    found = make()
    yield named({part.name: part.bytes for part in found.parts})
    yield f"{sizes((found.reserved, found.active, found.fits))} {found.is_host} {found.expandable}"
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
    **{f"anatomies: {name}": partial(anatomies, make) for name, make in SESSIONS.items()},
    "anatomies: a session that runs": partial(anatomies, open_session),
    **{f"record: {name}": partial(of_record, make) for name, make in SESSIONS.items()},
    "parts of readings": of_readings,
    "runs over each other": of_runs,
    "comparison by step": lambda: of_comparison(compared()),
    "comparison by time": lambda: of_comparison(compared(by="time", parts=False)),
    **{f"{by} MiB a step": partial(of_leaks, by) for by in (0, 0.06, 0.2, 5, 60, 900, 4000)},
    "fragmentation": lambda: of_fragmentation(lambda: MAP.fragmentation(GPU)),
    "fragmentation of a heap": lambda: of_fragmentation(heap),
    "fragmentation where segments grow": lambda: of_fragmentation(expandable),
}
"""What is kept, by name."""


def kept() -> dict[str, list[str]]:
    """Return what is kept, by name."""
    blocks = FILE.read_text(encoding="utf-8").strip().split("\n\n")
    return {head.removeprefix("== "): lines for head, *lines in map(str.splitlines, blocks)}


if __name__ == "__main__":
    text = "\n\n".join("\n".join((f"== {name}", *make())) for name, make in EVERY.items())
    FILE.write_text(text + "\n", encoding="utf-8")
