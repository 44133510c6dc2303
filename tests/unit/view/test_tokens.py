"""What a token takes at the peak of a step."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from hfmem_widget.session import Session
from hfmem_widget.text import GIB, KIB
from hfmem_widget.view.card import card_bundle
from hfmem_widget.view.tokens import MOST_DOTS, token_cost
from tests.scenes.stage import Stage

LENGTHS = (512, 768, 1024, 640, 2048, 1536, 896, 1280)


def trained(peak: Callable[[int], float], lengths: tuple[int, ...] = LENGTHS) -> Session:
    """Return a training whose steps have so many tokens, and such peaks."""
    stage = Stage("fine-tune", gpus=1)
    with stage.span("cell", "fine-tune"):
        for number, tokens in enumerate(lengths, start=1):
            with stage.span("step", f"step {number}") as span:
                stage.recorder.count(span.id, {"step": number, "tokens": tokens})
                stage.hold({"cuda:0": peak(tokens)}, 0.5)
                stage.hold({"cuda:0": GIB}, 0.1)
    return stage.finish()


def text_of(session: Session) -> str:
    cost = token_cost(session, session.spans[0], session.devices[0])
    return "" if cost is None else cost.text(140.4 * GIB)


def test_a_line_over_the_tokens_is_told() -> None:
    """With the range that it was seen in, and what twice the longest would need."""
    session = trained(lambda tokens: 2 * GIB + tokens * 1024 * KIB)
    said = (
        "Each token adds 1.00 MiB to the peak of a step, from 512 to 2,048 tokens; if that goes on, 4,096 "
        "would need about 6.00 GiB, of 140.4 GiB."
    )

    assert text_of(session) == said
    assert said in card_bundle(session, session.spans[0], with_chart=True)["text/html"]


@pytest.mark.parametrize(
    ("peak", "lengths"),
    [
        pytest.param(lambda tokens: GIB + 500 * tokens**2, LENGTHS, id="no line"),
        pytest.param(lambda tokens: 8 * GIB + tokens * 100, LENGTHS, id="next to nothing"),
        pytest.param(lambda tokens: GIB + tokens * 1024 * KIB, LENGTHS[:5], id="few steps"),
        pytest.param(lambda tokens: GIB + tokens * 1024 * KIB, (512, 600) * 4, id="one length"),
        pytest.param(lambda tokens: 8 * GIB - tokens * 1024 * KIB, LENGTHS, id="falling"),
    ],
)
def test_what_is_no_cost_of_tokens_is_not_told(
    peak: Callable[[int], float], lengths: tuple[int, ...]
) -> None:
    """Where something else counts as well, or too little was seen."""
    assert text_of(trained(peak, lengths)) == ""


@pytest.mark.parametrize("rounds", [1, 20])
def test_the_steps_are_drawn_over_their_tokens(rounds: int) -> None:
    """Below the steps and phases, few enough for a saved notebook; the longest is rightmost, and highest."""
    session = trained(lambda tokens: 2 * GIB + tokens * 1024 * KIB, LENGTHS * rounds)
    html = card_bundle(session, session.spans[0], with_chart=True)["text/html"]
    _, _, inside = html.partition("steps and phases")
    dots = re.findall(r"M([\d.]+) ([\d.]+)h0", inside)
    rights, tops = zip(*((float(x), float(y)) for x, y in dots), strict=True)

    assert len(LENGTHS) <= len(dots) <= MOST_DOTS
    assert (rights[0], rights[-1]) == (2.0, 98.0)
    assert tops[-1] == min(tops)
    assert "512 tokens" in inside
    assert "2,048 tokens" in inside


def test_without_a_line_nothing_is_drawn() -> None:
    """As nothing is said."""
    session = trained(lambda tokens: GIB + 500 * tokens**2)
    html = card_bundle(session, session.spans[0], with_chart=True)["text/html"]

    assert "over tokens" not in html
