"""The nouns: devices, series, samples, spans, peaks, parts, findings. Fields and properties, no behaviour.

Readings are floats (bytes are exact to 2**53, and "not available" needs NaN); times are seconds since
the session began.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from hfmem_widget.display import Shown, resolve
from hfmem_widget.session.series import TABLE

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

Certainty = Literal["exact", "at least", "sampled"]
"""How a peak is known: by the allocator's counter, as a lower bound, or as the highest of some samples."""

SpanKind = Literal[
    "cell", "block", "train", "epoch", "step", "substep", "forward", "backward",
    "optimizer", "evaluate", "predict", "save", "load", "shard", "oom", "mark",
]  # fmt: skip

ROLES = ("allocated", "reserved", "peak", "device_used")
"""What every device has a series for, whichever source fills it; `Device.total` is the fifth."""

FINE_KINDS: frozenset[SpanKind] = frozenset({"step", "substep", "forward", "backward", "optimizer"})
"""What a long run has too many of to keep them all."""

NOT_AVAILABLE = math.nan


@dataclass(frozen=True, slots=True)
class Device:
    """One place memory lives in.

    Attributes
    ----------
    key : str
        ``"cuda:0"``, ``"cpu"``: what a person calls it.
    name : str
        The product's name, plain text.
    uuid : str
        The device's identity, with its ``GPU-`` or ``MIG-`` prefix; empty where it has none.
    total : float
        Capacity in bytes as this process may use it; NaN if unknown.
    provisional : bool
        True while key and UUID are matched by `CUDA_VISIBLE_DEVICES` alone, before CUDA is up.
    """

    key: str
    name: str
    uuid: str = ""
    total: float = NOT_AVAILABLE
    provisional: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of one device, such as ``cuda:0/allocated``.

    Attributes
    ----------
    device : str
        The device's key.
    metric : str
        One of `ROLES`, or a further metric of the source that fills it.
    label : str
        What people read in a legend: "allocated" on a GPU, "heap in use" on the CPU. That of `series.TABLE`
        by default.
    """

    device: str
    metric: str
    label: str = ""

    def __post_init__(self) -> None:
        if not self.label and self.metric in TABLE:
            object.__setattr__(
                self, "label", TABLE[self.metric].called(is_host=":" not in self.device)
            )

    @property
    def key(self) -> str:
        """``device/metric``."""
        return f"{self.device}/{self.metric}"


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of everything at one instant.

    Attributes
    ----------
    time : float
        Seconds since the session began.
    values : tuple of float
        Bytes (counts and percents for the few series that are no bytes), aligned with
        `Session.series`; shorter than it where series were added later. NaN is "not available".
    """

    time: float
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest value of a series within a span, in bytes, and how it is known."""

    value: float
    certainty: Certainty


@dataclass(frozen=True, slots=True)
class Span:
    """A named stretch of time with readings taken at both of its edges.

    Attributes
    ----------
    id : int
        Unique within the session, from 1, in order of opening.
    kind : str
        What it is a stretch of: a cell, a step, an evaluation.
    label : str
        Plain text.
    start, stop : float
        Seconds since the session began; `stop` is None while the span is open.
    before, after : Sample
        Readings taken on the thread that opened and closed it; `after` is None while it is open.
    peaks : mapping of str to Peak
        By series key.
    parent : int or None
        The id of the span it was opened in.
    outcome : str
        Empty while open, then "done", "interrupted", or "raised TypeName".
    counts : mapping of str to float
        What is counted in it: ``step``, ``samples``, ``longest``, ``tokens`` (padding included),
        ``content_tokens`` (without), ``largest_batch`` (tokens of the largest batch) of a step; ``steps``
        and ``epochs`` of a whole training.
    """

    id: int
    kind: SpanKind
    label: str
    start: float
    before: Sample
    stop: float | None = None
    after: Sample | None = None
    peaks: Mapping[str, Peak] = field(default_factory=dict)
    parent: int | None = None
    outcome: str = ""
    counts: Mapping[str, float] = field(default_factory=dict)

    @property
    def duration(self) -> float:
        """Seconds from start to stop; NaN while the span is open."""
        return NOT_AVAILABLE if self.stop is None else self.stop - self.start


@dataclass(frozen=True, slots=True)
class Phase:
    """All spans of one kind within one outermost span, taken together.

    Attributes
    ----------
    kind : str
    label : str
        What they are called if they are blocks; empty otherwise.
    count : int
        How many have ended.
    seconds : float
        Their durations, added up.
    highest : mapping of str to Span
        By series key, the one whose peak was the highest.
    """

    kind: SpanKind
    label: str
    count: int = 0
    seconds: float = 0.0
    highest: Mapping[str, Span] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Part:
    """Some of a device's memory, by what it is for.

    Attributes
    ----------
    name : str
        One of `series.PARTS`, such as ``weights``, ``activations``, ``unattributed``, ``cache``.
    label : str
        What people read.
    bytes : float
        Never negative, never NaN: a part that is not known is not told.
    note : str
        What must be known to read the figure right; usually empty.
    """

    name: str
    label: str
    bytes: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Anatomy(Shown):
    """A device's memory at one moment, part by part.

    Attributes
    ----------
    device : Device
    moment : str
        "now", "at the peak", "at step 12".
    time : float
        Seconds since the session began.
    allocated, reserved, process : float
        Bytes; the sums that the parts stand for as far as each reaches. NaN if unknown.
    parts : tuple of Part
        From the bottom of a stack to its top: first what is allocated, then what else the process has, then
        what else the device has, and what is free.
    certainty : {"exact", "at least", "sampled"}
        How `allocated` is known.
    notes : tuple of str
        Plain sentences.
    """

    _shown_by: ClassVar[str] = "hfmem_widget.view.anatomy:shown_anatomy"

    device: Device
    moment: str
    time: float
    allocated: float
    reserved: float
    process: float
    parts: tuple[Part, ...]
    certainty: Certainty = "sampled"
    notes: tuple[str, ...] = ()

    def bytes(self, name: str) -> float:
        """Return the bytes of a part by its name; NaN if it is not told."""
        return next((part.bytes for part in self.parts if part.name == name), NOT_AVAILABLE)

    def to_pandas(self) -> pd.DataFrame:
        """Return the parts as a data frame, indexed by name: label, bytes, share of the device, note."""
        import pandas as pd

        shares = [part.bytes / self.device.total for part in self.parts]
        columns = {
            "label": [part.label for part in self.parts],
            "bytes": [part.bytes for part in self.parts],
            "share": shares,
            "note": [part.note for part in self.parts],
        }
        names = [part.name for part in self.parts]
        return pd.DataFrame(columns, index=pd.Index(names, name="part"))

    def figure(self) -> go.Figure:
        """Return the parts as a bar, a `plotly.graph_objects.Figure`."""
        drawn: go.Figure = resolve("hfmem_widget.view.chart.figure:anatomy_figure")([self])
        return drawn


@dataclass(frozen=True, slots=True)
class Contents:
    """What kind of tensors a session's models and optimizers were found to have, over all devices.

    Attributes
    ----------
    modules, optimizers : tuple of str
        Names of their classes.
    parameters, trainable : int
        Elements, each storage once; quantised ones as they are packed.
    dtypes : mapping of str to int
        Bytes of the weights by type, such as ``{"float32": 1340575752}``.
    tensors : int
        How many storages the weights have.
    optimizer_bytes : int
        Of all states, on all devices.
    """

    modules: tuple[str, ...] = ()
    optimizers: tuple[str, ...] = ()
    parameters: int = 0
    trainable: int = 0
    dtypes: Mapping[str, int] = field(default_factory=dict)
    tensors: int = 0
    optimizer_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """A judgement about a session, with its evidence.

    Attributes
    ----------
    kind : str
        The check that made it.
    severity : {"info", "warn", "critical"}
    title : str
        One sentence with a figure.
    evidence : mapping
        The numbers behind it; bytes are ints.
    advice : tuple of str
        What to try, most useful first.
    span_id : int or None
        The span it is about.
    """

    kind: str
    severity: Literal["info", "warn", "critical"]
    title: str
    evidence: Mapping[str, object] = field(default_factory=dict)
    advice: tuple[str, ...] = ()
    span_id: int | None = None


@dataclass(frozen=True, slots=True)
class Guide:
    """What is drawn over the chart of a device: a straight line, or the instant at which it ran out.

    Attributes
    ----------
    device : str
        The device's key.
    kind : {"budget", "trend", "oom"}
        An "oom" is a point: both its ends are the same.
    label : str
        What people read at it; plain text.
    start, stop : float
        Seconds since the session began; `stop` is infinite where the line goes on as long as the run.
    first, last : float
        Bytes at both ends.
    band : tuple of float
        What the line may be off at each end, in bytes either way; zeros where it is exact.
    """

    device: str
    kind: Literal["budget", "trend", "oom"]
    label: str
    start: float
    stop: float
    first: float
    last: float
    band: tuple[float, float] = (0.0, 0.0)


@dataclass(slots=True)
class Polling:
    """How well the poller did; written by it, read by everything else.

    Attributes
    ----------
    interval : float
        Seconds between ticks as asked for.
    current_interval : float
        Seconds between ticks now; longer than asked for after a back-off.
    ticks, missed : int
        Ticks made, and ticks that came too late to be made at all.
    longest_gap : float
        Longest time between two neighbouring ticks, in seconds.
    cost : float
        Seconds of this process' CPU time that a tick takes, smoothed.
    stopped : str
        Why polling ended early; empty while all is well.
    """

    interval: float = 0.1
    current_interval: float = 0.1
    ticks: int = 0
    missed: int = 0
    longest_gap: float = 0.0
    cost: float = NOT_AVAILABLE
    stopped: str = ""
