"""Everything recorded by a watch, as plain data."""

from hfmem_widget.session.model import (
    FINE_KINDS,
    ROLES,
    Anatomy,
    Certainty,
    Contents,
    Device,
    Finding,
    Guide,
    LocalNote,
    Part,
    Peak,
    Phase,
    Polling,
    Sample,
    Series,
    Span,
    SpanKind,
)
from hfmem_widget.session.ranks import PhaseSkew, Rank, RankRow, Ranks, RankStrip
from hfmem_widget.session.recorder import Recorder
from hfmem_widget.session.series import HELD
from hfmem_widget.session.session import Session
from hfmem_widget.session.spans import Phases, Spans, outermost
from hfmem_widget.session.steps import DeviceSteps, StepGroup, Steps
from hfmem_widget.session.timeline import Timeline

__all__ = [
    "FINE_KINDS",
    "HELD",
    "ROLES",
    "Anatomy",
    "Certainty",
    "Contents",
    "Device",
    "DeviceSteps",
    "Finding",
    "Guide",
    "LocalNote",
    "Part",
    "Peak",
    "Phase",
    "PhaseSkew",
    "Phases",
    "Polling",
    "Rank",
    "RankRow",
    "RankStrip",
    "Ranks",
    "Recorder",
    "Sample",
    "Series",
    "Session",
    "Span",
    "SpanKind",
    "Spans",
    "StepGroup",
    "Steps",
    "Timeline",
    "outermost",
]
