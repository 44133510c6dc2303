"""Adds to a watch what was forecast for one of its steps, and what would have fit."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from hfmem_widget.analysis.facts import ran_out
from hfmem_widget.features.fit.beside import (
    Forecasts,
    LastTraining,
    beside_text,
    failed_spans,
)
from hfmem_widget.monitor.batch import SeenBatches
from hfmem_widget.monitor.companion import NOTHING, Companion
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.monitor.process import process_state
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Recorder, Session, Span


class Fits(Companion):
    """Looks at a training once it has ended."""

    def __init__(self, options: WatchOptions | None = None) -> None:
        self._trained: Callable[[], list[weakref.ref[Any]]] = list

    def begin(self, monitor: Monitor, recorder: Recorder, span: Span) -> None:
        """Note what was trained before."""
        subjects, seen = monitor.attribution.subjects, process_state(SeenBatches)
        adds, before = subjects.adds, [*seen.values()]

        def trained() -> list[weakref.ref[Any]]:
            optimizers = map(weakref.ref, subjects.optimizers_since(adds))
            new = (key for key, batch in seen.items() if not any(batch is each for each in before))
            return [*optimizers, *(seen[key].model for key in new if key[1])]

        self._trained = trained

    def report(self, session: Session, span: Span) -> Mapping[str, str]:
        """Add what would have fit, and to the remarks the newest forecast that a step of the span is of."""
        errors = [each for each in session.findings if ran_out(each) and each.span_id == span.id]
        is_trained = any(phase.kind == "step" for phase in session.phases(span.id))
        if errors or is_trained:
            process_state(LastTraining).session = session
            session.trained = self._trained()
            if errors:
                from hfmem_widget.features.fit.moves import moves_after_an_error
                from hfmem_widget.features.fit.passes import PASSES, moves_of_passes

                is_of_passes = any(each.kind in PASSES for each in failed_spans(session, span))
                after = moves_of_passes if is_of_passes else moves_after_an_error
                session.moves = after(session, span, errors[-1])
            from hfmem_widget.features.fit.recorded import recipe_of_live

            session.recipe = recipe_of_live(session)
        texts = (beside_text(session, span, each) for each in reversed(process_state(Forecasts)))
        if text := next(filter(None, texts), ""):
            session.remarks[span.id] = text
        return NOTHING
