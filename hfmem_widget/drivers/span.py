"""``with hfmem_widget.span("forward")``: a part of a watched cell or block, with peaks of its own."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self, cast, get_args

from hfmem_widget.drivers.decorate import Decorates, failure
from hfmem_widget.guard import entry
from hfmem_widget.monitor.patch import is_traced
from hfmem_widget.session import Session, Span, SpanKind
from hfmem_widget.session.model import FINE_KINDS
from hfmem_widget.text import plain

if TYPE_CHECKING:
    from hfmem_widget.monitor.monitor import Monitor

OVERLAP_NOTE = (
    "A span was closed early, together with the span around it. Where coroutines, threads or callbacks "
    "overlap, only the span that was opened first covers its whole run."
)

NO_NUMBER_NOTE = (
    "A count of a span was ignored: it must be a finite number on the host, not {}. "
    "Pass a number, such as tokens=batch.numel()."
)


class SpanScope(Decorates):
    """What `span` returns: it opens a span in the current watch; without a watch it does nothing."""

    def __init__(self, label: str, counts: Mapping[str, object]) -> None:
        self._label = plain(label)
        self._counts: dict[str, float] = {}
        self._left_out: set[str] = set()
        self._count(counts)
        self._opened: list[tuple[Monitor, Session, Span]] = []

    def _close(self, error: BaseException | None = None) -> None:
        if not self._opened:
            return
        monitor, session, span = self._opened.pop()
        # A generator that is collected on the poller's thread ends there; its span ends with the outer one.
        if session.running and not monitor.poller.is_here:
            # An optimizer's call ends a supposed step, and may lie within a span of the user's.
            if span.kind not in FINE_KINDS and not monitor.is_open(session, span.id):
                monitor.recorder(session).note(OVERLAP_NOTE)
            if self._left_out:
                note = NO_NUMBER_NOTE.format(", ".join(sorted(self._left_out)))
                monitor.recorder(session).note(note)
            from hfmem_widget.monitor.monitor import outcome_of

            monitor.close_span(session, span.id, outcome_of(error), self._counts)

    @entry(defers=False)
    def count(self, **counts: float) -> None:
        """Add counts to the span once they are known, such as ``tokens=2048``."""
        self._count(counts)

    @entry(otherwise=lambda _scope: _NoSpan(), defers=False)
    def _another(self) -> SpanScope:
        return SpanScope(self._label, self._counts)

    def __enter__(self) -> Self:
        # Not imported before the first watch: until then, a span in a library costs next to nothing.
        if "hfmem_widget.monitor.shared" in sys.modules:
            self._enter()
        return self

    @entry(undo=_close)
    def _enter(self) -> None:
        from hfmem_widget.monitor.shared import current_watch

        if (watch := current_watch()) is not None:
            monitor, session = watch
            is_kind = self._label in {*get_args(SpanKind)} - {
                "cell",
                "oom",
                "mark",
            }  # those are ours
            kind = cast("SpanKind", self._label) if is_kind else "block"
            self._opened.append((monitor, session, monitor.open_span(session, kind, self._label)))

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if self._opened:
            self._exit(failure(error))

    _exit = entry()(_close)

    def _count(self, counts: Mapping[str, object]) -> None:
        # Converted at once: a tensor kept until the span ends would hold memory.
        for name, value in counts.items():
            number = number_on_host(value)
            if number is None:
                self._left_out.add(f"{plain(name)} ({plain(type(value).__name__)})")
            else:
                self._counts[plain(name)] = number


class _NoSpan(SpanScope):
    """Stands in for a span after a fault, and in code that torch.compile traces."""

    def __init__(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def count(self, **counts: float) -> None:
        pass

    def _another(self) -> SpanScope:
        return self


def number_on_host(value: Any) -> float | None:
    """Return a finite number; None for anything else, and for a tensor that is not on the host."""
    try:
        if not isinstance(value, (int, float)):
            device = getattr(getattr(value, "device", None), "type", "cpu")
            if device != "cpu" or getattr(value, "shape", None) != () or not hasattr(value, "item"):
                return None
        number = float(value)
    except Exception:  # noqa: BLE001  (an object of the user's may raise what it likes)
        return None
    return number if math.isfinite(number) else None


def span(label: str, **counts: float) -> SpanScope:
    """Open a span in the current watch, for a ``with`` block or every call of a decorated function.

    The span of a coroutine or a generator lasts until that has ended. Spans are nested: where coroutines
    overlap, a span ends with the outer one at the latest, and a note of the session says so.

    Parameters
    ----------
    label : str
        The name. "train", "epoch", "step", "substep", "forward", "backward", "optimizer", "evaluate",
        "predict", "load" and "save" are drawn and counted as a Trainer's are, "prefill" and "decode" as those
        of ``generate``; anything else is a block.
    **counts : float
        Counts of the span: ``tokens`` (padding included), ``samples`` and ``longest`` of a step, the planned
        ``steps`` of a training.

    Returns
    -------
    SpanScope
        Its `count` adds counts that are known later. It does nothing while nothing is watched, and in code
        that torch.compile has compiled.

    Examples
    --------
    >>> for batch in loader:
    ...     with hfmem_widget.span("step", tokens=batch["input_ids"].numel()):
    ...         with hfmem_widget.span("forward"):
    ...             loss = model(**batch).loss
    ...         with hfmem_widget.span("backward"):
    ...             loss.backward()
    """
    return _NoSpan() if is_traced() else _scope(label, counts)


_scope = entry(otherwise=lambda *_: _NoSpan(), defers=False)(SpanScope)
