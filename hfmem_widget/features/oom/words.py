"""An out-of-memory error in words: as a finding, where it happened, and with which batch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hfmem_widget.features.oom.errors import Origin
from hfmem_widget.features.oom.model import Advice, Diagnosis, Incident, OomEvent
from hfmem_widget.features.oom.places import in_backward, recomputing
from hfmem_widget.session import Finding, Span
from hfmem_widget.text import format_count, format_counted, size_text

KIND = "oom"

WHO: dict[Origin, str] = {
    "cuda": "PyTorch's allocator",
    "cuda async": "CUDA's own allocator (cudaMallocAsync)",
    "cuda runtime": "the CUDA runtime",
    "cublas": "cuBLAS",
    "cudnn": "cuDNN",
    "nccl": "NCCL",
    "bitsandbytes": "bitsandbytes",
    "mps": "PyTorch's allocator for MPS",
    "xpu": "PyTorch's allocator for XPU",
    "cpu": "PyTorch's CPU allocator",
    "numpy": "NumPy",
    "python": "Python",
    "no batch size": "the search for a batch size",
    "other": "a library",
}

_EVIDENCE = (
    "asked", "free", "total", "allowed", "allocated", "reserved", "largest_free", "others",
)  # fmt: skip
"""The figures of an incident that its finding has, where they are known."""


def finding_of(
    incident: Incident, diagnosis: Diagnosis, advice: Sequence[Advice], span: Span
) -> Finding:
    """Return an error as a finding of the span that it ended."""
    figures = {name: getattr(incident, name) for name in _EVIDENCE} | {"total": incident.capacity}
    known = {name: int(value) for name, value in figures.items() if math.isfinite(value)}
    return Finding(
        kind=KIND,
        severity="critical",
        title=f"{headline(incident)} ({diagnosis.name}).",
        evidence={
            "device": incident.device.key,
            "cause": diagnosis.cause,
            "diagnosis": diagnosis.sentence,
            "origin": incident.origin,
            "observed": incident.blocks is not None,
            **known,
        },
        advice=tuple(part.sentence() for part in advice),
        span_id=span.id,
    )


def caught_finding(last: OomEvent, count: int, span: Span) -> Finding:
    """Return errors that the code itself caught as a finding of its span."""
    errors = "An out-of-memory error was" if count == 1 else f"{count} out-of-memory errors were"
    which = "it" if count == 1 else "the last one"
    return Finding(
        kind=KIND,
        severity="info",
        title=f"{errors} caught; {which} requested {size_text(last.asked)} on {last.device}, with "
        f"{size_text(last.free)} free.",
        evidence={
            "device": last.device,
            "caught": count,
            "asked": int(last.asked),
            "free": int(last.free),
        },
        span_id=span.id,
    )


def headline(incident: Incident) -> str:
    """Return what ran out and what was requested, without a full stop."""
    asked = f"{size_text(incident.asked)} requested" if incident.asked > 0 else ""
    free = f"{size_text(incident.free)} free" if incident.free >= 0 else ""
    figures = ", ".join(filter(None, (asked, free)))
    return f"Out of memory on {incident.place}" + (f": {figures}" if figures else "")


def where(incident: Incident) -> tuple[str, ...]:
    """Return what was running, outermost first, as short phrases."""
    spans = (span for span in incident.path if span.kind not in {"cell", "block"})
    phrases = [span.label or span.kind for span in spans]
    if in_backward(incident) and incident.within("backward") is None:
        phrases.append("backward pass")
    if recomputing(incident):
        phrases.append("checkpoint recomputation")
    return tuple(dict.fromkeys(phrases))


def batch(incident: Incident) -> str:
    """Return the size of the batch, such as "8 by 512 tokens"; empty if unknown."""
    samples, longest = incident.batch_samples, incident.count("longest")
    tokens = incident.batch_tokens
    if samples > 0 and longest > 0 and samples * longest == tokens:
        return f"{format_count(samples)} \u00d7 {format_count(longest)} tokens"
    if tokens > 0:
        return f"{format_count(tokens)} tokens"
    return format_counted(samples, "sample") if samples > 0 else ""
