"""What is known: plain data, and the session that holds it. Imports nothing of the package's other rooms."""

from hfmem_widget.session.model import (
    ROLES,
    Certainty,
    Device,
    Finding,
    Peak,
    Polling,
    Sample,
    Series,
    Span,
    SpanKind,
)
from hfmem_widget.session.session import Session
from hfmem_widget.session.timeline import Timeline

__all__ = [
    "ROLES",
    "Certainty",
    "Device",
    "Finding",
    "Peak",
    "Polling",
    "Sample",
    "Series",
    "Session",
    "Span",
    "SpanKind",
    "Timeline",
]
