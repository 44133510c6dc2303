"""The building blocks of scripted out-of-memory errors."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from hfmem_widget.analysis.parts import LABELS
from hfmem_widget.features.oom.model import Incident
from hfmem_widget.features.oom.observer import Blocks
from hfmem_widget.session import Anatomy, Device, Part, Sample, Span, SpanKind
from hfmem_widget.text import GIB

GPU = Device("cuda:0", "NVIDIA H200", "GPU-0", 140 * GIB)
HOST = Device("cpu", "AMD EPYC 9454", "", 64 * GIB)

NOTHING: Mapping[str, float] = {}


class Case(NamedTuple):
    """An incident, its cause, words that its advice has in this order, and words that it must not have."""

    name: str
    incident: Incident
    cause: str
    advice: tuple[str, ...] = ()
    never: tuple[str, ...] = ()


def spans(*kinds: SpanKind, **counts: float) -> tuple[Span, ...]:
    """Return open spans within a cell, the innermost `step` with counts."""
    labels: dict[SpanKind, str] = {
        "step": f"step {counts.get('step', 1):.0f}",
        "epoch": "epoch 1 of 3",
    }
    return tuple(
        Span(at, kind, labels.get(kind, kind), 0.0, Sample(0.0, ()), parent=at - 1 or None,
             counts=counts if kind == "step" else {})
        for at, kind in enumerate(("cell", *kinds), start=1)
    )  # fmt: skip


def anatomy(device: Device, allocated: float, parts: Mapping[str, float]) -> Anatomy:
    """Return the parts at the instant of the error, given in GiB."""
    pieces = tuple(
        Part(name, LABELS[name], parts[name] * GIB) for name in LABELS if parts.get(name, 0) > 0
    )
    return Anatomy(device, "when it ran out", 1.0, allocated, allocated, allocated, pieces, "exact")


def incident(
    *, asked: float, free: float, parts: Mapping[str, float] = NOTHING, **more: Any
) -> Incident:
    """Return an error on an 80 GiB share of a GPU; sizes in GiB, parts up to the cache allocated."""
    total = more.pop("total", 80.0) * GIB
    held = sum(
        size for name, size in parts.items() if name not in {"cache", "context", "others", "free"}
    )
    allocated = more.pop("allocated", held) * GIB
    reserved = more.pop("reserved", (allocated / GIB) + parts.get("cache", 0.0)) * GIB
    for name in ("allowed", "others", "grown"):
        if name in more:
            more[name] *= GIB
    device = more.pop("device", GPU)
    beside = {"others": more.get("others", 0.0) / GIB, "free": free} if parts else {}
    return Incident(
        device=device,
        origin=more.pop("origin", "cuda"),
        asked=asked * GIB,
        free=free * GIB,
        total=total,
        allocated=allocated,
        reserved=reserved,
        anatomy=anatomy(device, allocated, {**parts, **beside}) if parts else None,
        **more,
    )


def blocks(free: float, largest: float, **more: Any) -> Blocks:
    """Return blocks with some GiB free, in pieces up to a size in GiB."""
    return Blocks(count=200, free=free * GIB, largest_free=largest * GIB, **more)


def case(
    name: str,
    cause: str,
    *,
    advice: tuple[str, ...] = (),
    never: tuple[str, ...] = (),
    **known: Any,
) -> Case:
    """Return the case of an `incident` with some known figures."""
    return Case(name, incident(**known), cause, advice, never)
