"""Memory beside PyTorch's that grew in a span: of child processes, of other processes, and in malloc."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from hfmem_widget.analysis.facts import end_of, uses_a_gpu
from hfmem_widget.analysis.parts import Read, known_values
from hfmem_widget.session import Device, Session, Span
from hfmem_widget.text import MIB, format_bytes, format_counted

METRIC = "device_used"

LEAST = 256 * MIB
LEAST_SHARE = 0.01
"""Bytes, and share of a device, from which on its rise is worth a sentence: a page in a browser is not."""

_ALIKE = 0.02
"""Share of the largest rise by which others may differ and still count as the same."""

_MOSTLY = 0.8
"""Share of a device's rise from which on child processes alone explain it: their figures are read later
than the device's."""

EACH = " each"

LEAST_OF_CHILDREN = 256 * MIB
LEAST_KEPT = 64 * MIB
LEAST_UNTOUCHED = 16 * MIB
"""Bytes from which on each is worth a sentence."""

UNTOUCHED = "was allocated and not written yet: it takes memory once it is written."

OF_CHILDREN = ("children", "child_processes", "data_workers", "children_shared")


@dataclass(frozen=True, slots=True)
class Moved:
    """A device whose memory in use, by all processes, rose; bytes."""

    device: Device
    before: float
    highest: float
    after: float
    own: float  # the rise of this process' share; NaN where the driver does not report it
    children: float = 0.0  # the rise of the share of this process' children; NaN likewise

    @property
    def rise(self) -> float:
        """How far it rose above what was in use before."""
        return self.highest - self.before

    @property
    def has_children(self) -> bool:
        """Whether child processes took enough of it for a sentence."""
        return self.children >= _least(self.device)


@dataclass(frozen=True, slots=True)
class Movement:
    """The devices that others filled while a span ran."""

    devices: tuple[Moved, ...] = ()
    processes: int = 0  # child processes that used GPUs at once; 0 where that is not known
    leads: bool = False  # PyTorch in this process used no GPU, so what others did comes first

    @property
    def has_children(self) -> bool:
        """Whether child processes filled any of the devices."""
        return any(device.has_children for device in self.devices)

    @property
    def lead(self) -> str:
        """How many devices rose, by how much, how high, and by whom; empty if this process comes first."""
        return self._sentence(how_high=True)

    @property
    def brief(self) -> str:
        """The same where there is little room: of several devices without how high."""
        return self._sentence(how_high=False).partition("; ")[0]

    def _sentence(self, *, how_high: bool) -> str:
        if not (self.devices and self.leads):
            return ""
        by = _range([device.rise for device in self.devices])
        fullest = max(self.devices, key=attrgetter("highest"))
        key, highest = fullest.device.key, format_bytes(fullest.highest)
        if len(self.devices) == 1:
            return f"{key} rose by {by} to {highest}, {self._by_whom}"
        most = f", highest {highest} on {key}" if how_high else ""
        return f"{len(self.devices)} devices rose by {by}{most}, {self._by_whom}"

    @property
    def by_children(self) -> str:
        """What child processes used beside this process; empty if there is a `lead`, or they used nothing."""
        if not self.devices or self.leads:
            return ""
        used, count = _range([device.children for device in self.devices]), len(self.devices)
        if count == 1:
            where = self.devices[0].device.key
        else:
            where = f"each of {count} devices" if used.endswith(EACH) else f"{count} devices"
        return f"{self._children} used {used.removesuffix(EACH)} more on {where}"

    @property
    def _children(self) -> str:
        if not self.processes:
            return "child processes"
        return "1 child process" if self.processes == 1 else f"{self.processes} child processes"

    @property
    def _by_whom(self) -> str:
        own = [device.own for device in self.devices]
        is_by_us = any(rise >= LEAST for rise in own)
        if self.has_children:
            are_all = all(device.children >= _MOSTLY * device.rise for device in self.devices)
            if is_by_us:
                return f"by {self._children} and by this process outside PyTorch"
            others = "" if are_all else " and other processes"
            return f"by {self._children}{others}; this process used no GPU"
        if is_by_us:
            return "by this process, but outside PyTorch"
        if any(map(math.isnan, own)):
            return "by other processes or by this one outside PyTorch"
        return "by other processes; this one used no GPU"


def movement(session: Session, span: Span | None = None) -> Movement:
    """Return what others did to the devices; where PyTorch used a GPU here, only what child processes did."""
    if session.ranks is not None:  # an overview is of processes, and has no devices of its own
        return Movement()
    leads = not uses_a_gpu(session, span)
    # A live view asks again and again while the span is open.
    highs = session.highs_in(span.id) if span is not None and span.stop is None else {}
    course = partial(_course, session, span, highs)
    gpus = [device for device in session.devices if ":" in device.key]
    devices = [moved for device in gpus if (moved := _moved(device, course, leads=leads))]
    _, processes, _ = course("cpu/gpu_children")
    return Movement(tuple(devices), 0 if math.isnan(processes) else int(processes), leads)


def brief_lead(session: Session, span: Span) -> str:
    """Return the `Movement.brief` of a span; where this process uses a GPU, without a look at the others."""
    return "" if uses_a_gpu(session, span) else movement(session, span).brief


def _range(rises: list[float]) -> str:
    least, most = min(rises), max(rises)
    if len(rises) == 1:
        return format_bytes(most)
    if least >= (1 - _ALIKE) * most:
        return format_bytes(most) + EACH
    return f"{format_bytes(least)} to {format_bytes(most)}"


def _least(device: Device) -> float:
    return max(LEAST, LEAST_SHARE * device.total if device.total > 0 else 0.0)


def _moved(
    device: Device, course: Callable[[str], tuple[float, float, float]], *, leads: bool
) -> Moved | None:
    own, children = (
        highest - before
        for before, highest, _ in map(course, (f"{device.key}/process", f"{device.key}/children"))
    )
    moved = Moved(device, *course(f"{device.key}/{METRIC}"), own, children)
    # Memory that is shared with the CPU rises with whatever runs there, too.
    is_much = moved.rise >= _least(device) if leads and not device.shared else moved.has_children
    return moved if is_much else None


def _course(
    session: Session, span: Span | None, highs: Mapping[str, float], key: str
) -> tuple[float, float, float]:
    """Return a series at the beginning, at its highest and at the end; NaN where it is not known."""
    if (
        span is not None
        and key in highs
        and math.isfinite(before := session.value(span.before, key))
    ):
        return before, highs[key], session.value(session.last_sample, key)
    start = 0.0 if span is None else span.start
    stop = session.last_sample.time if span is None else end_of(session, span)
    values = known_values(session, key, start, stop)
    if span is not None:
        samples = [sample for sample in (span.before, span.after) if sample is not None]
        edges = [value for sample in samples if math.isfinite(value := session.value(sample, key))]
        values = [*edges[:1], *values, *edges[1:]]
    return (values[0], max(values), values[-1]) if values else (math.nan,) * 3


def children_words(session: Session, read: Read) -> tuple[str, str]:
    """Return such as "4 DataLoader workers and 1 other process", and how their memory is counted: "(PSS)"."""
    count, workers = (0 if math.isnan(n := read(name)) else int(n) for name in OF_CHILDREN[1:3])
    others, which = count - workers, "other" if workers else "child"
    kinds = [format_counted(workers, "DataLoader worker")] if workers else []
    kinds += [f"{others} {which} process{'es' * (others > 1)}"] if others > 0 else []
    column = session.index("cpu/children")
    label = "" if column is None else session.series[column].label
    return " and ".join(kinds), label.removeprefix("child processes").strip()


def children_text(session: Session, span: Span) -> str:
    """Return what child processes held at most within a span; empty if that was little."""
    columns = [session.index(f"cpu/{name}") for name in OF_CHILDREN]
    present = [column for column in columns if column is not None]
    if session.ranks is not None or len(present) < len(OF_CHILDREN):
        return ""  # ranks report their own children
    rows = session.between(span.start, end_of(session, span), present).high
    rows = rows[rows[:, 0] >= LEAST_OF_CHILDREN]
    if not len(rows):
        return ""
    highest = dict(zip(OF_CHILDREN, rows[rows[:, 0].argmax()].tolist(), strict=True))
    children, how = children_words(session, highest.__getitem__)
    shared = highest["children_shared"]
    held = f"{'hold' if span.stop is None else 'held up to'} {format_bytes(highest['children'])}"
    of_it = f", {format_bytes(shared)} of it shared memory" if shared >= MIB else ""
    return f"{children} {held} {how}".rstrip() + f"{of_it}."


def kept_text(read: Read) -> str:
    """Return what malloc keeps of the host's memory, and how to return it; empty if that is little."""
    kept = read("cached")
    if not kept >= LEAST_KEPT:
        return ""
    return (
        f"malloc keeps {format_bytes(kept)} that nobody uses; %memholders --free garbage --trim returns "
        "what it can."
    )


def untouched_text(session: Session, span: Span) -> str:
    """Return what was asked of malloc within a span and not written yet; empty if that is little."""
    if session.ranks is not None or uses_a_gpu(session, span):
        return ""
    before, after = (
        session.value(sample, "cpu/untouched")
        for sample in (span.before, span.after or session.last_sample)
    )
    more = after - (0.0 if math.isnan(before) else before)
    if not more >= LEAST_UNTOUCHED:
        return ""
    return f"At least {format_bytes(more)} {UNTOUCHED}"
