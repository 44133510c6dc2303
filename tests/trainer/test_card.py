"""The card of a real training: what a notebook keeps of it."""

from __future__ import annotations

from typing import Any

from hfmem_widget.session import Polling
from hfmem_widget.view.card import card_bundle
from tests.trainer.tiny import session_of

PARTS = 4
EACH = 220  # bytes of a further part, in the bar and below it


def test_the_card_of_a_training_is_small(trainer: Any) -> None:
    """Its HTML is at most 6 kB where the bar has four parts: how many others there are, the machine says."""
    session = session_of(trainer)
    session.polling = Polling()  # a busy machine has a note more
    html = card_bundle(session, session.spans[0], with_chart=True)["text/html"]

    assert "steps and phases" in html
    assert len(html.encode()) <= 6_000 + EACH * max(0, html.count("<rect") - PARTS)
