"""Adds to a watch what was forecast for one of its steps, and what would have fit."""

from __future__ import annotations

from collections.abc import Mapping

from hfmem_widget.features.fit.beside import Forecasts, beside_text, ran_out
from hfmem_widget.monitor.companion import NOTHING, Companion
from hfmem_widget.monitor.process import process_state
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Session, Span


class Fits(Companion):
    """Looks at a training once it has ended."""

    def __init__(self, options: WatchOptions | None = None) -> None:
        pass

    def report(self, session: Session, span: Span) -> Mapping[str, str]:
        """Add what would have fit, and to the remarks the newest forecast that a step of the span is of."""
        if any(ran_out(each) for each in session.findings):
            from hfmem_widget.features.fit.moves import moves_after_an_error

            session.moves = moves_after_an_error(session, span)
        texts = (beside_text(session, span, each) for each in reversed(process_state(Forecasts)))
        if text := next(filter(None, texts), ""):
            session.remarks[span.id] = text
        return NOTHING
