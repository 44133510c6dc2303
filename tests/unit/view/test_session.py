"""A session shows itself where it is looked at: what its cell showed at the end, as it stands now."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from IPython.lib.pretty import pretty

from hfmem_widget.session import Recorder, Sample
from hfmem_widget.session.spans import SpanTuple
from hfmem_widget.text import GIB
from hfmem_widget.view.card import MOST_CELLS, MOST_SPANS, card_bundle, cells_text
from hfmem_widget.view.chart.svg import chart_html
from tests.data.overviews import EIGHT, overview
from tests.scenes import scripted_run
from tests.scenes.stage import Stage


def test_a_watched_cell_is_its_card_and_its_chart() -> None:
    """In one output, which needs no script; as text it is the one line."""
    session = scripted_run("training")
    span = session.spans[0]
    card = card_bundle(session, span, with_chart=True)

    assert session._repr_mimebundle_() == {
        "text/html": card["text/html"] + chart_html(session, span),
        "text/plain": card["text/plain"],
    }


def test_one_that_runs_shows_how_it_stands() -> None:
    """With the peak so far."""
    recorder = Recorder("now")
    session = recorder.session
    before = recorder.append(Sample(0.0, ()))
    recorder.open_span("cell", "now", before)
    recorder.append(Sample(2.0, ()))
    shown = session._repr_mimebundle_()

    assert "running" in shown["text/html"]
    assert shown["text/plain"].startswith('memwatch "now" · 2.0 s · running')


@pytest.mark.parametrize("count", [2, MOST_CELLS, MOST_CELLS + 3])
def test_one_of_many_cells_lists_the_newest(count: int) -> None:
    """A line for each, and how many are left out."""
    recorder = Recorder("every cell")
    session = recorder.session
    for at in range(count):
        sample = recorder.append(Sample(float(at), ()))
        span = recorder.open_span("cell", f"[{at}]", sample)
        recorder.close_span(span.id, sample, {})
    text = session._repr_mimebundle_()["text/plain"]

    assert text.count("memwatch ") == min(count, MOST_CELLS)
    assert f'memwatch "[{count - 1}]"' in text
    assert (f"{count - MOST_CELLS} cells before" in text) == (count > MOST_CELLS)


def test_one_in_which_nothing_was_watched_is_a_line() -> None:
    """In which one of a thing is no plural."""
    recorder = Recorder("a")
    session = recorder.session
    recorder.append(Sample(0.0, ()))

    assert session._repr_mimebundle_() == {"text/plain": repr(session)}
    assert repr(session) == "<Session 'a' running: 1 sample of 0 series, 0 spans>"


def test_a_cell_that_started_ranks_shows_them() -> None:
    """As it did when it ended: their card, the cell on a line, and their chart."""
    session, ranks = scripted_run("training"), overview(EIGHT)
    session.run = SimpleNamespace(overview=ranks)
    shown = session._repr_mimebundle_()

    lines = shown["text/plain"].splitlines()
    assert "8 ranks" in lines[0]
    assert lines[-1].startswith("memwatch")
    assert shown["text/html"].endswith(chart_html(ranks))


def test_spans_show_themselves_as_a_table() -> None:
    """With the peak of each, those within another one indented; as text in IPython, too."""
    spans = scripted_run("training").spans
    shown = spans._repr_mimebundle_()
    text = pretty(spans)

    assert shown["text/html"].count("<tr") > 3
    assert text == shown["text/plain"]
    assert re.search(
        r"^fine-tune +1 +cell +0.0 ms +11.6 s +6.99 GiB exact +cuda:0$", text, re.MULTILINE
    )


def test_very_many_spans_show_the_newest() -> None:
    """And say how many there are."""
    spans = SpanTuple(scripted_run("training").spans * 100)

    assert spans._repr_mimebundle_()["text/html"].count("<tr") <= MOST_SPANS + 1
    assert "older spans not shown" in pretty(spans)


def test_the_cells_of_a_notebook_are_told_in_one_sentence() -> None:
    """The peak is of the first cell that came as high, not of one that added next to nothing."""
    stage = Stage("every cell", gpus=1)
    for number, size in enumerate([2 * GIB, 8 * GIB, 8 * GIB + 1], start=1):
        with stage.span("cell", f"[{number}] x"):
            stage.hold({"cuda:0": size}, 0.5)

    assert cells_text(stage.finish()) == "3 cells watched, peak 8.00 of 140.4 GiB in [2] x."
