"""Adds to a watch the forecast of one of its steps, and the changes with which it would have fit."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from hfmem_widget.features.fit.beside import (
    Forecasts,
    LastTraining,
    beside_text,
    error_of,
    failed_spans,
)
from hfmem_widget.monitor.batch import SeenBatch, SeenBatches
from hfmem_widget.monitor.companion import NOTHING, Companion
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.monitor.process import process_state
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Recorder, Session, Span


class Fits(Companion):
    """Compares a training with its forecast when its watch ends, and looks for changes if it ran out."""

    def __init__(self, options: WatchOptions | None = None) -> None:
        self._trained: Callable[[], list[weakref.ref[Any]]] = list
        self._evaluated: Callable[[], list[SeenBatch]] = list

    def begin(self, monitor: Monitor, recorder: Recorder, span: Span) -> None:
        """Note the optimizers and batches so far, so that only newer ones count."""
        subjects, seen = monitor.attribution.subjects, process_state(SeenBatches)
        adds, before = subjects.adds, [*seen.values()]

        def new(*, is_training: bool) -> list[SeenBatch]:
            keys = (key for key in seen if key[1] is is_training)
            return [seen[key] for key in keys if not any(seen[key] is each for each in before)]

        def trained() -> list[weakref.ref[Any]]:
            optimizers = map(weakref.ref, subjects.optimizers_since(adds))
            return [*optimizers, *(each.model for each in new(is_training=True))]

        self._trained, self._evaluated = trained, partial(new, is_training=False)

    def report(self, session: Session, span: Span) -> Mapping[str, str]:
        """Store the changes that would have fit, and the newest forecast of a step of the span."""
        error = error_of(session, span)
        is_trained = any(phase.kind == "step" for phase in session.phases(span.id))
        session.evaluated = self._evaluated()
        if error or is_trained:
            process_state(LastTraining).session = session
            session.trained = self._trained()
            if error:
                from hfmem_widget.features.fit.moves import moves_after_an_error
                from hfmem_widget.features.fit.passes import PASSES, moves_of_passes

                is_of_passes = any(failed.kind in PASSES for failed in failed_spans(session, span))
                after = moves_of_passes if is_of_passes else moves_after_an_error
                session.moves = after(session, span, error)
            from hfmem_widget.features.fit.recorded import recipe_of_live

            session.recipe = recipe_of_live(session)
        texts = (beside_text(session, span, each) for each in reversed(process_state(Forecasts)))
        if text := next(filter(None, texts), ""):
            session.remarks[span.id] = text
        return NOTHING
