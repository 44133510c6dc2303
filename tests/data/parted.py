"""Sessions with known parts, written out by hand."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from hfmem_widget.session import (
    Certainty,
    Device,
    Peak,
    Recorder,
    Sample,
    Series,
    Session,
    Span,
    SpanKind,
)
from hfmem_widget.text import GIB, MIB

NAN = math.nan
TOTAL = 140 * GIB
METRICS = (
    *("allocated", "reserved", "requested", "device_used", "driver_reserved", "context", "others"),
    *("weights", "buffers", "gradients", "optimizer", "unattributed"),
)


class Script:
    """One device whose figures are set by hand, with a sample every tenth of a second."""

    def __init__(self, key: str = "cuda:0", *, total: float = TOTAL) -> None:
        self.key = key
        self.recorder = Recorder("fine-tune")
        self.session = self.recorder.session
        self.certainty: Certainty = "sampled" if key == "cpu" else "exact"
        self.now: dict[str, float] = dict.fromkeys(METRICS, NAN)
        self._time = 0.0
        self._highest: dict[int, dict[str, float]] = {}
        device = Device(key, "NVIDIA H200" if key != "cpu" else "AMD EPYC", total=total)
        self.recorder.adopt([device], [Series(key, metric) for metric in METRICS])

    @property
    def device(self) -> Device:
        return self.session.devices[0]

    def read(self, **values: float) -> Sample:
        """Advance a tenth of a second, and read these figures; the others stay as before."""
        self._time += 0.1
        self.now.update(values)
        allocated = self.now["allocated"]
        for metric, least in (("requested", allocated), ("reserved", self.now["reserved"])):
            if metric not in values and not math.isnan(self.now[metric]):
                self.now[metric] = max(least, allocated)
        for metrics in self._highest.values():
            for metric in ("allocated", "reserved", "requested"):
                metrics[metric] = max(metrics.get(metric, -1.0), self.now[metric])
        return self.recorder.append(Sample(self._time, tuple(self.now.values())))

    @contextmanager
    def span(
        self,
        kind: SpanKind,
        *,
        peak: float = NAN,
        counts: Mapping[str, float] | None = None,
        **at_end: float,
    ) -> Iterator[Span]:
        """Read at both edges; the peak is `peak`, or the highest reading in between."""
        span = self.recorder.open_span(kind, kind, self.read())
        self._highest[span.id] = {}
        yield span
        after = self.read(**at_end)
        if not math.isnan(peak):
            for metrics in self._highest.values():
                for metric in ("allocated", "reserved", "requested"):
                    metrics[metric] = max(metrics.get(metric, -1.0), peak)
        known = self._highest.pop(span.id)
        self.recorder.count(span.id, counts or {})
        peaks = {
            f"{self.key}/{metric}": Peak(value, self.certainty)
            for metric, value in known.items()
            if value >= 0
        }
        self.recorder.close_span(span.id, after, peaks)


def training(steps: int = 6, *, key: str = "cuda:0", nvml: bool = True) -> Session:
    """Return weights of 1.25 GiB, trained with Adam: what a Trainer's run looks like, in small.

    The first step makes the optimizer states, every one of them the gradients, which go after it. Something
    of 20 MiB lies there that no model and no optimizer knows of.
    """
    script, weights, other = Script(key), 1.25 * GIB, 20 * MIB
    _beside(script, allocated=0.0, nvml=nvml)
    with script.span("cell"):
        for share in range(1, 6):
            _beside(script, allocated=share / 5 * weights + other, nvml=nvml)
        script.now.update(weights=weights, buffers=4 * MIB, gradients=0.0, optimizer=0.0)
        with script.span("train"):
            for step in range(1, steps + 1):
                top = (2.4 if step == 4 else 1.6 + 0.1 * step) * GIB
                _step(script, step, weights + other, top, nvml=nvml)
    script.recorder.stop(60.0)
    return script.session


def _step(script: Script, step: int, lying: float, activations: float, *, nvml: bool) -> None:
    states = 0.0 if step == 1 else 2.5 * GIB
    gradients, other = 1.25 * GIB, 16 * MIB
    with script.span("step", counts={"step": step, "tokens": 1024, "largest_batch": 1024}):
        script.now["unattributed"] = other
        with script.span("forward"):
            for share in (0.3, 0.7, 0.9):
                _beside(script, allocated=lying + states + share * activations, nvml=nvml)
        top = lying + states + activations + 0.1 * gradients
        with script.span("backward", peak=top, gradients=gradients):
            _beside(script, allocated=lying + states + 0.8 * activations, nvml=nvml)
            script.now["gradients"] = 0.5 * gradients
            _beside(script, allocated=lying + states + 0.5 * (activations + gradients), nvml=nvml)
            script.now.update(allocated=lying + states + gradients)
        states = 2.5 * GIB
        with script.span("optimizer", optimizer=states, allocated=lying + states + gradients):
            pass
        _beside(script, allocated=lying + states, gradients=0.0, nvml=nvml)
    script.now["unattributed"] = NAN


def _beside(script: Script, *, allocated: float, nvml: bool, **held: float) -> None:
    """Read allocated bytes together with the figures that follow from them."""
    reserved = max(0.0 if math.isnan(script.now["reserved"]) else script.now["reserved"], allocated)
    script.read(
        allocated=allocated,
        reserved=reserved,
        **({"requested": allocated} if script.key != "cpu" else {}),
        device_used=reserved + 650 * MIB if nvml else NAN,
        driver_reserved=615 * MIB if nvml else NAN,
        context=620 * MIB if nvml else NAN,
        others=30 * MIB if nvml else NAN,
        **held,
    )
