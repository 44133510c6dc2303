"""Overviews of distributed runs, scripted by hand: how 2, 8 and 1,024 ranks look.

All of it is invented, and the same every time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from hfmem_widget.session import (
    Device,
    Finding,
    Peak,
    PhaseSkew,
    RankRow,
    Ranks,
    RankStrip,
    Recorder,
    Sample,
    Series,
    Session,
    SpanKind,
)
from hfmem_widget.session.rank_records import SHOWN_SINGLY, SILENT_CELL, STRIP_COLUMNS, STRIP_ROWS
from hfmem_widget.text import GIB
from tests.fakes.ranks import GPU
from tests.scenes.stage import STARTED_AT

TOTAL = 79.8 * GIB
WEIGHTS = 13.4 * GIB


@dataclass(frozen=True)
class Plan:
    """A run: the number of ranks, which of them differ, and which fall silent."""

    world: int
    per_node: int = 8
    seconds: int = 751
    worst: int = 0
    excess: float = 1.3
    since: float = 0.63  # of the run
    silent: range = range(0)
    silent_since: float = 0.87
    peak: float = 52.9 * GIB
    total: float = TOTAL
    label: str = "fine-tune"
    host: str = "node{:04d}"
    device: str = "NVIDIA H100 80GB HBM3"

    def is_silent(self, rank: int, time: float) -> bool:
        return rank in self.silent and time >= self.silent_since * self.seconds

    def allocated(self, rank: int, time: float) -> float:
        """Return what a rank holds at some second."""
        period = self.seconds / 20
        share = math.sin(math.pi * ((time / period) % 1.0)) ** 0.6
        base = 0.62 + 0.38 * share
        if time < period:
            base = 0.75 * min(1.0, time / (0.5 * period))
        noise = 0.03 * math.sin(12.9898 * rank + 0.07 * math.floor(time / 3)) + 0.012 * math.sin(
            rank * 3.7
        )
        is_off = rank == self.worst and time >= self.since * self.seconds
        factor = 1 + (self.excess - 1) * share if is_off else 1.0
        return float(min(0.97 * self.total, self.peak * base * factor * (1 + noise * (not is_off))))


TWO = Plan(
    2, per_node=2, seconds=96, worst=1, excess=1.06, peak=6.99 * GIB, total=23.7 * GIB, label="two"
)
EIGHT = Plan(8, seconds=312, worst=5, excess=1.2, silent=range(3, 4))
MANY = Plan(1024, worst=417, silent=range(640, 648))


def overview(plan: Plan, *, until: float | None = None, ended: bool = True) -> Session:
    return overview_recorder(plan, until=until, ended=ended).session


@cache
def shared_overview(plan: Plan, *, until: float | None = None, ended: bool = True) -> Session:
    """Return the overview of a run, made once for tests that only read it."""
    return overview(plan, until=until, ended=ended)


def overview_recorder(plan: Plan, *, until: float | None = None, ended: bool = True) -> Recorder:
    recorder = Recorder(plan.label, started_at=STARTED_AT)
    session, world = recorder.session, plan.world
    stop = int(plan.seconds if until is None else until)
    is_small = world <= SHOWN_SINGLY
    shown = tuple(range(world)) if is_small else (0, plan.worst)
    nodes = -(-world // plan.per_node)
    on_nodes = f" on {nodes} nodes" if nodes > 1 else ""
    devices = [Device("ranks", f"{world:,} ranks{on_nodes}", total=plan.total)]
    devices += [
        Device(
            f"rank:{rank}", f"rank {rank} · {_host(plan, rank)} · {plan.device}", total=plan.total
        )
        for rank in shown
    ]
    singly = [f"rank{rank}" for rank in shown] if is_small else []
    series = [Series("ranks", metric) for metric in ("allocated", "median", "lowest", *singly)]
    series += [Series(f"rank:{rank}", metric) for rank in shown for metric in GPU]
    recorder.adopt(devices, series)
    session.polling.interval = session.polling.current_interval = 1.0
    first = recorder.append(Sample(0.0, ()))
    outer = recorder.open_span("block", plan.label, first)
    train = recorder.open_span("train", "train", first)
    recorder.count(train.id, {"steps": 2000, "epochs": 1})
    highest = dict.fromkeys(range(world), 0.0)
    for second in range(stop + 1):
        values = sorted(_values(plan, second, highest))
        now = [values[-1], values[len(values) // 2], values[0]]
        now += [_or_nan(plan, rank, second) for rank in shown] if is_small else []
        for rank in shown:
            own = _or_nan(plan, rank, second)
            held = (own, own * 1.04, own * 1.04 + 1.2 * GIB)
            now += [*held, min(WEIGHTS, own / 4), own / 8, own / 4, 0.0]
        recorder.append(Sample(float(second), tuple(now)))
    last = session.last_sample
    worst = max(highest, key=lambda rank: highest[rank])
    peaks = {"ranks/allocated": Peak(highest[worst], "exact")}
    peaks |= {f"rank:{rank}/allocated": Peak(highest[rank], "exact") for rank in shown}
    session.ranks = _ranks(plan, stop, highest, shown)
    _find(plan, session, worst, highest)
    if ended:
        recorder.close_span(train.id, last, peaks)
        recorder.close_span(outer.id, last, peaks)
        recorder.stop(STARTED_AT + stop)
    return recorder


def _host(plan: Plan, rank: int) -> str:
    return plan.host.format(rank // plan.per_node)


def _values(plan: Plan, second: int, highest: dict[int, float]) -> list[float]:
    values = []
    # Of a thousand the pattern repeats: enough are looked at to know the lowest and the median.
    step = max(1, plan.world // 64)
    for rank in sorted({*range(0, plan.world, step), plan.worst, *plan.silent}):
        if plan.is_silent(rank, second):
            continue
        value = plan.allocated(rank, second)
        highest[rank] = max(highest[rank], value)
        values.append(value)
    return values


def _or_nan(plan: Plan, rank: int, second: float) -> float:
    return math.nan if plan.is_silent(rank, second) else plan.allocated(rank, second)


def _ranks(plan: Plan, stop: int, highest: dict[int, float], shown: Sequence[int]) -> Ranks:
    seen = sorted((rank for rank in highest if highest[rank] > 0), key=lambda rank: -highest[rank])
    worst, lowest = seen[0], seen[-1]
    silent = [rank for rank in plan.silent if plan.is_silent(rank, stop)]
    rest = [rank for rank in seen[1:] if rank not in silent and rank != lowest]
    listed = [worst, *rest[: 14 - min(4, len(silent))], *silent[:4], lowest][:16]
    peaks = [highest[rank] for rank in seen]
    median = sorted(peaks)[len(peaks) // 2]
    is_off = plan.world > 2 and stop >= plan.since * plan.seconds
    table = tuple(
        RankRow(
            rank,
            host=_host(plan, rank),
            device=plan.device,
            total=plan.total,
            peak=highest[rank],
            certainty="exact",
            allocated=_or_nan(plan, rank, stop),
            weights=min(WEIGHTS, highest[rank] / 4),
            activations=highest[rank] * 0.54,
            step=312 * stop // plan.seconds - (rank in silent),
            phase="backward",
            silent=stop - plan.silent_since * plan.seconds if rank in silent else 0.0,
            flag="silent" if rank in silent else "outlier" if rank == worst and is_off else "",
        )
        for rank in dict.fromkeys(listed)
    )
    of_phases: tuple[tuple[SpanKind, float, float, int], ...] = (
        ("forward", 0.83, peaks[1] * 1.02, worst),
        ("backward", 1.0, peaks[0], worst),
        ("optimizer", 0.85, peaks[1], seen[1]),
        ("evaluate", 0.59, peaks[1], seen[1]),
    )
    phases = tuple(
        PhaseSkew(kind, share * peaks[-1], share * median, share * high, rank)
        for kind, share, high, rank in of_phases
    )
    nodes = -(-plan.world // plan.per_node)
    return Ranks(
        plan.world,
        nodes,
        plan.world - len(silent),
        "torchrun",
        tuple(shown),
        peaks[-1],
        median,
        lowest,
        table,
        phases,
        _strip(plan, stop),
    )


def _strip(plan: Plan, stop: int) -> RankStrip:
    rows = min(plan.world, STRIP_ROWS)
    size = plan.world // rows
    pace = max(1.0, stop / (STRIP_COLUMNS - 1))
    at = tuple(pace * column for column in range(int(stop / pace) + 1))
    cells = bytearray()
    for time in at:
        for row in range(rows):
            ranks = range(row * size, (row + 1) * size)
            looked_at = {ranks[0], ranks[-1], *(r for r in (plan.worst,) if r in ranks)}
            if all(plan.is_silent(rank, time) for rank in ranks) or (
                size > 8 and any(plan.is_silent(rank, time) for rank in ranks)
            ):
                cells.append(SILENT_CELL)
                continue
            share = max(plan.allocated(rank, time) for rank in looked_at) / plan.total
            cells.append(min(250, round(200 * share)))
    return RankStrip(tuple(range(0, plan.world, size)), at, bytes(cells))


def _find(plan: Plan, session: Session, worst: int, highest: dict[int, float]) -> None:
    if plan.world <= 2:
        return
    peak, median = highest[worst], sorted(value for value in highest.values() if value)
    middle = median[len(median) // 2]
    host = _host(plan, worst)
    session.findings.append(
        Finding(
            "rank-outlier",
            "warn",
            f"Rank {worst} ({host}) peaks at {peak / GIB:.1f} GiB, its peers of equal weights at "
            f"{middle / GIB:.1f} (+{100 * (peak / middle - 1):.0f} %), in backward, since step 262.",
            {"device": "ranks", "time": plan.since * plan.seconds},
        )
    )
    if plan.silent:
        first, last = plan.silent[0], plan.silent[-1]
        names = f"Ranks {first} to {last}" if last > first else f"Rank {first}"
        session.findings.append(
            Finding(
                "rank-silent",
                "warn",
                f"{names} ({_host(plan, first)}) {'have' if last > first else 'has'} been silent for 97 s; "
                "the others wait in step 312.",
            )
        )
