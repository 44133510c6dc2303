"""A session shows and explains itself: as it stands now, and as text for people and programs."""

import re
from types import SimpleNamespace

import pytest
from IPython.lib.pretty import pretty

from hfmem_widget.session import Finding, Move, Sample, Session
from hfmem_widget.session.spans import SpanTuple
from hfmem_widget.text import GIB
from hfmem_widget.view.card import MOST_CELLS, MOST_SPANS, MOST_TEXT, card_bundle, cells_text
from hfmem_widget.view.chart.svg import chart_html
from hfmem_widget.view.explained import MOST_LINES
from tests.data.overviews import EIGHT, overview
from tests.data.recorders import recorder_of
from tests.scenes import SCRIPTED_RUNS, scripted_run
from tests.scenes.stage import Stage


def test_a_watched_cell_is_its_card_and_its_chart() -> None:
    """Card and chart are one output, which needs no script; as text it is the one line."""
    session = scripted_run("training")
    span = session.spans[0]
    card = card_bundle(session, span, with_chart=True)

    assert session._repr_mimebundle_() == {
        "text/html": card["text/html"] + chart_html(session, span),
        "text/plain": card["text/plain"],
    }


def test_a_running_session_shows_its_peak_so_far() -> None:
    """The card has the peak so far, and says that the session runs."""
    recorder = recorder_of((), keys=())
    recorder.open_span("cell", "now", recorder.session.last_sample)
    recorder.append(Sample(2.0, ()))
    bundle = recorder.session._repr_mimebundle_()

    assert "running" in bundle["text/html"]
    assert bundle["text/plain"].startswith('memwatch "now" · 2.0 s · running')


@pytest.mark.parametrize("count", [2, MOST_CELLS, MOST_CELLS + 3])
def test_a_session_of_many_cells_lists_the_newest(count: int) -> None:
    """Each of the newest cells has a line, and one says how many are left out."""
    recorder = recorder_of((), keys=())
    for at in range(count):
        span = recorder.open_span("cell", f"[{at}]", recorder.session.last_sample)
        recorder.close_span(span.id, recorder.append(Sample(float(at), ())), {})
    text = recorder.session._repr_mimebundle_()["text/plain"]

    assert text.count("memwatch ") == min(count, MOST_CELLS)
    assert f'memwatch "[{count - 1}]"' in text
    assert (f"{count - MOST_CELLS} cells before" in text) == (count > MOST_CELLS)


def test_a_session_without_spans_is_a_line() -> None:
    """The line counts samples, series and spans, with singular and plural."""
    session = recorder_of((), keys=()).session

    assert session._repr_mimebundle_() == {"text/plain": repr(session)}
    assert repr(session) == "<Session 'run' running: 1 sample of 0 series, 0 spans>"


def test_a_cell_that_started_ranks_shows_them() -> None:
    """It shows the ranks' card, the cell on a line, and the ranks' chart, as it did when it ended."""
    session, ranks = scripted_run("training"), overview(EIGHT)
    session.run = SimpleNamespace(overview=ranks)
    bundle = session._repr_mimebundle_()

    lines = bundle["text/plain"].splitlines()
    assert "8 ranks" in lines[0]
    assert lines[-1].startswith("memwatch")
    assert bundle["text/html"].endswith(chart_html(ranks))


def test_spans_show_themselves_as_a_table() -> None:
    """The table has the peak of each span, and indents inner ones; in IPython it is text."""
    spans = scripted_run("training").spans
    bundle = spans._repr_mimebundle_()
    text = pretty(spans)

    assert bundle["text/html"].count("<tr") > 3
    assert text == bundle["text/plain"]
    assert re.search(
        r"^fine-tune +1 +cell +0.0 ms +11.6 s +6.99 GiB exact +cuda:0$", text, re.MULTILINE
    )


def test_very_many_spans_show_the_newest() -> None:
    """Very many spans show the newest, and say how many there are."""
    spans = SpanTuple(scripted_run("training").spans * 100)

    assert spans._repr_mimebundle_()["text/html"].count("<tr") <= MOST_SPANS + 1
    assert "older spans not shown" in pretty(spans)


def test_one_sentence_sums_up_the_cells_of_a_notebook() -> None:
    """The peak is of the first cell that came as high, not of one that added next to nothing."""
    stage = Stage("every cell", gpus=1)
    for number, size in enumerate([2 * GIB, 8 * GIB, 8 * GIB + 1], start=1):
        with stage.span("cell", f"[{number}] x"):
            stage.hold({"cuda:0": size}, 0.5)

    assert cells_text(stage.finish()) == "3 cells watched, peak 8.00 of 140.4 GiB in [2] x."


LEFT = "%memholders --free errors frees what the error holds."


def failed(moves: int = 0) -> Session:
    """Return a training that ran out of memory; so many changes were tried."""
    session = scripted_run("failed")
    diagnosis = {"device": "cuda:0", "diagnosis": "Memory is full: the batch takes it."}
    title = "Out of memory on cuda:0: 2.00 GiB requested"
    session.findings.insert(0, Finding("oom", "critical", title, diagnosis, (LEFT,), 1))
    session.moves = [
        Move(f"change {at}", (), 1, 1, 1, "", int(GIB), 1.0, 2.0, 3.0) for at in range(moves)
    ]
    return session


@pytest.mark.parametrize("name", SCRIPTED_RUNS)
def test_an_explanation_is_short(name: str) -> None:
    """It begins with how the run ended and the sentence of its card, and has at most 40 lines."""
    session = scripted_run(name)
    explained = session.explain()
    lines = repr(explained).splitlines()
    assert lines[0].startswith(f"{session.spans[0].label}: {explained.outcome}")
    assert lines[1].startswith("Peak ")
    assert len(lines) <= MOST_LINES


def test_an_error_is_explained_by_its_cause() -> None:
    """The cause has the first advice, as a call where there are no magics; a long text is cut at its end."""
    session = failed(moves=3)
    session.findings += [Finding("x", "info", "word " * 50, {}, ("more " * 50,), 1)] * 30
    text = repr(session.explain())
    assert "critical: Out of memory on cuda:0" in text
    assert "  Memory is full: the batch takes it.\n  hfmem_widget.free('errors')" in text
    assert len(text.splitlines()) <= MOST_LINES


def test_without_a_span_there_is_nothing_to_explain() -> None:
    """The text says that nothing was watched."""
    assert repr(Session("x").explain()) == "x: nothing was watched"


@pytest.mark.parametrize("name", SCRIPTED_RUNS)
def test_the_text_of_a_card_answers_by_itself(name: str) -> None:
    """The text has the peak, its parts and the findings with advice, in at most 1,500 characters."""
    session = scripted_run(name)
    text = card_bundle(session, session.spans[0], with_chart=True)["text/plain"]
    assert len(text) <= MOST_TEXT
    assert all(each.title.rstrip(".") in text for each in session.findings[:3])
    assert all(each.advice[0].rstrip(".") in text for each in session.findings[:3] if each.advice)
    assert "at the peak" in text or not session.anatomy("peak").bytes("weights") > 0


def test_a_long_text_keeps_its_end() -> None:
    """What to type next is the last line, however much is found."""
    session = failed(moves=40)
    text = card_bundle(session, session.spans[0], with_chart=True)["text/plain"]
    assert len(text) <= MOST_TEXT
    assert text.splitlines()[-1].startswith("  next: %memholders")


@pytest.mark.parametrize(
    ("name", "commands"),
    [
        ("training", ["%memanatomy"]),
        ("leak", ["%memholders", "%memfit", "%memanatomy"]),
        ("short", []),
    ],
)
def test_the_next_commands_fit_the_findings(name: str, commands: list[str]) -> None:
    """A training suggests `%memanatomy`, a leak `%memholders` and `%memfit` too, and a short cell nothing."""
    assert [*scripted_run(name).explain().next] == commands
