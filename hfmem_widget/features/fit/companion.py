"""Adds to a watch the forecast of one of its steps, and the changes with which it would have fit."""

import sys
import weakref
from functools import partial
from typing import Any

from hfmem_widget.analysis.facts import failed_spans
from hfmem_widget.features.fit.beside import Forecasts, LastTraining, beside_text, error_of
from hfmem_widget.monitor.batch import SeenBatch, SeenBatches
from hfmem_widget.monitor.companion import Companion
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.monitor.process import process_state
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Recorder, Session, Span

_Mark = tuple[int, tuple[SeenBatch, ...]]
"""How many times an optimizer was named, and the batches that models had by then."""


class Fits(Companion):
    """Compares a training with its forecast when its watch ends, and looks for changes if it ran out."""

    def __init__(self, options: WatchOptions | None = None) -> None:
        self._seen = process_state(SeenBatches)
        self._training: int | None = None  # the id of its span, 0 without one
        self._steps = 0  # of the newest training, those of a group as one
        self._beside: dict[int, weakref.ref[Any]] = {}

    def begin(self, monitor: Monitor, recorder: Recorder, span: Span) -> None:
        """Note the optimizers and batches so far, so that only newer ones count."""
        self._subjects = monitor.attribution.subjects
        self._within = partial(recorder.session.open_within, span.id)
        self._at_first = self._at_training = self._at_step = self._now()
        recorder.on_step(self._step_ended)

    def _now(self) -> _Mark:
        return self._subjects.adds, tuple(self._seen.values())

    def _seen_since(self, mark: _Mark, *, is_training: bool) -> list[SeenBatch]:
        batches = [batch for key, batch in [*self._seen.items()] if key[1] is is_training]
        return [each for each in batches if not any(each is other for other in mark[1])]

    def _step_ended(self, _step: Span) -> None:
        training = next((span.id for span in self._within() if span.kind == "train"), 0)
        if self._training and not training:
            return  # a loop of the user's own after a Trainer's training
        if training != self._training:
            self._training, self._at_training, self._steps = training, self._at_step, 0
            self._beside.clear()
        self._steps += 1
        if self._steps > 1:  # until the first one ends, it may have run before the training
            newer = self._seen_since(self._at_step, is_training=False)
            self._beside |= {id(each.model()): each.model for each in newer}
        self._at_step = self._now()

    def report(self, session: Session, span: Span) -> None:
        """Store the changes that would have fit, and the newest forecast of a step of the span."""
        error = error_of(session, span)
        is_trained = any(phase.kind == "step" for phase in session.phases(span.id))
        session.evaluated = self._seen_since(self._at_first, is_training=False)
        if error or is_trained:
            process_state(LastTraining).session = session
            began, beside = self._at_training, [*self._beside.values()]
            session.trained = [
                *map(weakref.ref, self._subjects.optimizers_since(began[0])),
                *(each.model for each in self._seen_since(began, is_training=True)),
            ]
            if self._steps < 2:
                beside = [each.model for each in self._seen_since(began, is_training=False)]
            session.beside = beside
            # Without torch nothing was trained, and it is not ours to import.
            if error and "torch" in sys.modules:
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
