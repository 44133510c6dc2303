"""Devices, series, samples, spans, peaks, parts and findings: plain data.

Readings are floats: bytes are exact to 2**53, and NaN is "not available". Times are seconds since the
session began.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from hfmem_widget.display import Shown, resolve
from hfmem_widget.session.series import TABLE, row_of
from hfmem_widget.text import format_bytes, format_count, format_counted, format_share

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

Certainty = Literal["exact", "at least", "sampled"]
"""The source of a peak: the allocator's counter, a lower bound, or the highest of some samples."""

SpanKind = Literal[
    "cell", "block", "train", "epoch", "step", "substep", "forward", "backward",
    "optimizer", "prefill", "decode", "evaluate", "predict", "save", "load", "shard", "oom", "mark",
]  # fmt: skip

ROLES = ("allocated", "reserved", "peak", "device_used")
"""The metrics that every device has, whatever its source."""

FINE_KINDS: frozenset[SpanKind] = frozenset(
    {"step", "substep", "forward", "backward", "optimizer", "prefill", "decode"}
)
"""The kinds of spans within trainings and calls of ``generate``: a long run has too many to keep all."""

NOT_AVAILABLE = math.nan

MOST_SHARE = 0.01
"""Share of the time from one step to the next that measuring may take, without the step's own peak."""


class LocalNote(str):
    """A note that may name a path: it is shown, but left out of recordings and reports."""

    __slots__ = ()


def same(left: object, right: object) -> bool:
    """Return whether two pieces of data are equal; NaN, which ``==`` calls unequal, is equal to itself."""
    if left is right:
        return True
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return np.array_equal(left, right, equal_nan=True)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if is_dataclass(left) and type(left) is type(right):
        names = (each.name for each in fields(left))
        return all(same(getattr(left, name), getattr(right, name)) for name in names)
    return bool(left == right) or (left != left and right != right)  # noqa: PLR0124  (NaN alone is not itself)


class Growing:
    """Data that grows in place: equal if the attributes in `_compared` are equal, and without a hash."""

    _compared: ClassVar[tuple[str, ...]]
    __hash__ = None  # type: ignore[assignment]  # it changes

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(same(getattr(self, name), getattr(other, name)) for name in self._compared)


def data_frame(
    rows: Any, columns: Sequence[str], index: Any = None, name: str = ""
) -> pd.DataFrame:
    """Return a pandas data frame, by default indexed by numbers; raise `ImportError` without pandas."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("to_pandas() needs pandas: pip install pandas") from error
    names = None if index is None else pd.Index(index, name=name)
    return pd.DataFrame(rows, columns=list(columns), index=names)


@dataclass(frozen=True, slots=True)
class Device:
    """One place that has memory.

    Attributes
    ----------
    key : str
        Such as ``"cuda:0"`` or ``"cpu"``.
    name : str
        The product's name.
    uuid : str
        With its ``GPU-`` or ``MIG-`` prefix; empty if it has none.
    total : float
        Capacity in bytes as this process may use it; NaN if unknown.
    provisional : bool
        True while key and UUID are matched by `CUDA_VISIBLE_DEVICES` alone, before CUDA is up.
    shared : float
        Bytes of the machine's memory that its allocator can have, where the GPU has none of its own; the
        total is then the machine's. 0 for a device with its own memory.
    """

    key: str
    name: str
    uuid: str = ""
    total: float = NOT_AVAILABLE
    provisional: bool = False
    shared: float = 0.0


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of one device, such as ``cuda:0/allocated``.

    Attributes
    ----------
    device : str
        The device's key.
    metric : str
        One of `ROLES`, or another metric of the source that reads it.
    label : str
        Its name on the screen, such as "allocated" on a GPU and "private memory" on the CPU. Default: that
        of `series.TABLE`.
    """

    device: str
    metric: str
    label: str = ""

    def __post_init__(self) -> None:
        if not self.label and self.metric in TABLE:
            label = row_of(self.device, self.metric).called(is_host=":" not in self.device)
            object.__setattr__(self, "label", label)

    @property
    def key(self) -> str:
        """``device/metric``."""
        return f"{self.device}/{self.metric}"


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of all series at one instant.

    Attributes
    ----------
    time : float
        Seconds since the session began.
    values : tuple of float
        Bytes (a few series are counts or percents), aligned with `Session.series`; shorter where series were
        added later. NaN is "not available".
    """

    time: float
    values: tuple[float, ...]


class Size(float):
    """A number of bytes whose text is in GiB or MiB, and to the last byte."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return the bytes with their unit and to the last one."""
        exact = f" ({format_count(self)} bytes)" if math.isfinite(self) else ""
        return f"{format_bytes(self)}{exact}"


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest value of a series within a span, in bytes, and how it is known."""

    value: float
    certainty: Certainty


@dataclass(frozen=True, slots=True)
class Span:
    """A named interval with readings at its beginning and its end.

    Attributes
    ----------
    id : int
        Unique within the session, from 1, in order of opening.
    kind : str
        Such as ``cell``, ``step`` or ``evaluate``.
    label : str
        Plain text.
    start, stop : float
        Seconds since the session began; `stop` is None while the span is open.
    before, after : Sample
        The readings at its edges; `after` is None while it is open.
    peaks : mapping of str to Peak
        By series key.
    parent : int or None
        The id of the span it was opened in.
    outcome : str
        Empty while open, then "done", "interrupted", "exited with code 3" or "raised TypeName".
    counts : mapping of str to float
        Of a step ``step``, ``samples``, ``longest``, ``tokens`` (padding included), ``content_tokens``
        (without), ``largest_batch`` (tokens of the largest batch); of a training ``steps`` and ``epochs``; of
        a decode ``steps``, ``tokens``, ``samples``, ``longest``, how its KV cache grows (see `KVCache`) and
        the most that it held, such as ``cuda:0/kv_cache``.
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

    def ended(
        self, after: Sample, peaks: Mapping[str, Peak], outcome: str, counts: Mapping[str, float]
    ) -> Span:
        """Return the span, ended at a sample."""
        begun = self.id, self.kind, self.label, self.start, self.before
        # Written out: `replace` takes four times as long, and this is done at every edge.
        return Span(*begun, after.time, after, peaks, self.parent, outcome, counts)

    @property
    def duration(self) -> float:
        """Seconds from start to stop; NaN while the span is open."""
        return NOT_AVAILABLE if self.stop is None else self.stop - self.start

    @property
    def name(self) -> str:
        """The name of its phase among those of its kind: a block's label, or a forward pass's model."""
        is_named = self.kind == "block" or (self.kind == "forward" and self.label != "forward")
        return self.label if is_named else ""


@dataclass(slots=True)
class Phase:
    """Totals of all finished spans of one kind within one outermost span; a session returns copies."""

    kind: SpanKind
    label: str  # the `name` of its spans
    count: int = 0
    seconds: float = 0.0  # the sum of their durations
    highest: dict[str, Span] = field(default_factory=dict)
    """By series key, the span with the highest peak."""
    steps: int = 0
    """For a part of a step, the number of steps on which it was measured; for steps and for a model's forward
    passes, the number measured one by one. Short ones share spans."""


@dataclass(frozen=True, slots=True)
class Part:
    """The memory of a device that has one purpose.

    Attributes
    ----------
    name : str
        One of `series.PARTS`, such as ``weights``, ``activations``, ``unattributed``, ``cache``.
    label : str
        Its name on the screen.
    bytes : float
        Never negative, never NaN: an unknown part is left out.
    note : str
        A caveat for the figure; usually empty.
    """

    name: str
    label: str
    bytes: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Anatomy(Shown):
    """The parts of a device's memory at one instant.

    Attributes
    ----------
    device : Device
    moment : str
        "now", "at the peak", "at step 12".
    time : float
        Seconds since the session began.
    allocated, reserved, process : float
        Bytes; NaN if unknown.
    parts : tuple of Part
        Allocated memory first, then the rest of the process, then the rest of the device, free memory last.
    certainty : {"exact", "at least", "sampled"}
        How `allocated` is known.
    notes : tuple of str
        Plain sentences.
    made : mapping
        Upper bound in bytes of new gradients and optimizer states among the activations, by part.
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
    made: Mapping[str, float] = field(default_factory=dict)

    def bytes(self, name: str) -> float:
        """Return the bytes of a part by its name; NaN if unknown."""
        return next((part.bytes for part in self.parts if part.name == name), NOT_AVAILABLE)

    def to_pandas(self) -> pd.DataFrame:
        """Return the parts as a data frame, indexed by name: label, bytes, share of the device, note."""
        total, names = self.device.total, [part.name for part in self.parts]
        rows = [(part.label, part.bytes, part.bytes / total, part.note) for part in self.parts]
        return data_frame(rows, ["label", "bytes", "share", "note"], names, "part")

    def figure(self) -> go.Figure:
        """Return the parts as a bar, a `plotly.graph_objects.Figure`."""
        drawn: go.Figure = resolve("hfmem_widget.view.chart.figure:anatomy_figure")([self])
        return drawn


@dataclass(frozen=True, slots=True)
class KVCache:
    """The KV cache of a call of ``generate``: its size, its growth, and the longest sequence that would fit.

    A token is one more position of all sequences at once, over all layers.

    Attributes
    ----------
    device : Device
        The device with most of it.
    bytes : float
        Its peak there.
    sequences : int
        Sequences generated at once, beams included; 0 if unknown.
    length : int
        Tokens in it at the end, the prompt's included; 0 if unknown.
    token_bytes : float
        Bytes of each further token.
    window_bytes : float
        Further bytes of each token up to `window`.
    window : int
        The longest sliding window in tokens; 0 if there is none.
    limit : int
        Tokens that a static cache holds at most; 0 if it grows.
    longest : float
        Estimated maximum length in tokens, prompt included, in the free memory of the device less a tenth for
        temporaries. NaN on the CPU, for a static cache, and if unknown; infinite if the cache has stopped
        growing.
    tokens_per_second : float
        Of the decode, over all sequences, without its first step; NaN if unknown.
    """

    device: Device
    bytes: float
    sequences: int = 0
    length: int = 0
    token_bytes: float = 0.0
    window_bytes: float = 0.0
    window: int = 0
    limit: int = 0
    longest: float = NOT_AVAILABLE
    tokens_per_second: float = NOT_AVAILABLE


@dataclass(frozen=True, slots=True)
class Contents:
    """The tensors of a session's models and optimizers, over all devices."""

    modules: tuple[str, ...] = ()  # names of their classes
    optimizers: tuple[str, ...] = ()
    parameters: int = 0  # elements; each storage counts once, and quantised ones as they are packed
    trainable: int = 0
    dtypes: Mapping[str, int] = field(default_factory=dict)
    """Bytes of the weights by type, such as ``{"float32": 1340575752}``."""
    tensors: int = 0  # how many storages the weights have
    optimizer_bytes: int = 0
    libraries: Mapping[str, int] = field(default_factory=dict)
    """Bytes of libraries' buffers by name, such as ``{"DDP gradient buckets": 2684354560}``."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A judgement on a session, with its evidence.

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
    """

    kind: str
    severity: Literal["info", "warn", "critical"]
    title: str
    evidence: Mapping[str, object] = field(default_factory=dict)
    advice: tuple[str, ...] = ()
    span_id: int | None = None


@dataclass(frozen=True, slots=True)
class Guide:
    """A line over a device's chart, in seconds of the session and bytes; an "oom" ends where it starts."""

    device: str  # its key
    kind: Literal["budget", "trend", "oom"]
    label: str  # plain text
    start: float
    stop: float  # infinite where the line goes on as long as the run
    first: float
    last: float
    band: tuple[float, float] = (0.0, 0.0)
    """The line's margin of error at each end, either way; zeros if it is exact."""


@dataclass(slots=True)
class Polling:
    """Statistics of the sampling."""

    interval: float = 0.1  # requested seconds between ticks
    current_interval: float = 0.1  # current seconds between ticks; longer after a back-off
    ticks: int = 0
    missed: int = 0  # ticks skipped because they were late
    longest_gap: float = 0.0  # the longest time between two ticks, in seconds
    cost: float = NOT_AVAILABLE  # seconds of this process' CPU time that a tick takes, smoothed
    stopped: str = ""  # why polling ended early; usually empty
    steps: int = 0  # finished steps of trainings
    steps_with_phases: int = 0  # steps whose phases were measured
    groups: int = 0  # spans of the other steps; some steps share one
    short_steps: bool = False  # True while steps are so short that they share spans
    share: float = NOT_AVAILABLE  # of the time of recent steps that measuring them takes, estimated

    @property
    def limited(self) -> str:
        """A sentence on what is measured on some steps only; empty where every step is measured."""
        others = self.steps - self.steps_with_phases
        if others <= 0:
            return ""
        steps = format_counted(self.steps, "step")
        text = f"phases on {format_count(self.steps_with_phases)} of {steps}"
        if self.groups and (each := round(others / self.groups)) > 1:
            text += f", one peak for about {format_count(each)} steps at a time"
        if self.share > MOST_SHARE:
            return f"{text}; measuring takes {format_share(self.share)}"
        return f"{text}, to stay below 1 %"
