"""The still chart: what Plotly is given, and what a saved notebook has to carry."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import plotly.graph_objects as go
import pytest

from hfmem_widget.session import Peak, Session
from hfmem_widget.text import GIB, MIB
from hfmem_widget.view import palette
from hfmem_widget.view.card import card_bundle
from hfmem_widget.view.chart.figure import PLOTLY_MIME, chart_bundle, figure, figure_dict
from hfmem_widget.view.chart.lanes import MOST_BARS, lay_lanes
from hfmem_widget.view.chart.paint_plotly import unpacked
from hfmem_widget.view.chart.scene import build_scene
from tests.data.parted import training
from tests.data.plotly_words import INKED, plain_words
from tests.data.recorders import KEY, read, recorder_of
from tests.scenes import SCRIPTED_RUNS, shared_run
from tests.scenes.contrast import contrast
from tests.scenes.stage import Stage

CHARTED = [name for name in SCRIPTED_RUNS if name != "short"]


@cache
def drawn(name: str) -> dict[str, Any]:
    session = shared_run(name)
    return figure_dict(session, session.spans[0])


def trace(figure: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in figure["data"] if one.get("name") == name)


@cache
def many_steps(count: int) -> Session:
    recorder = recorder_of(GIB)
    cell = recorder.open_span("cell", "long", recorder.session.last_sample)
    for step in range(count):
        span = recorder.open_span("step", f"step {step + 1}", read(recorder, step + 0.0, GIB))
        peak = (9 if step == count // 3 else 2 + step % 3) * GIB
        recorder.close_span(span.id, read(recorder, step + 0.9, GIB), {KEY: Peak(peak, "exact")})
    recorder.close_span(cell.id, read(recorder, float(count), GIB), {KEY: Peak(9 * GIB, "exact")})
    return recorder.session


@pytest.mark.parametrize("name", ["training", "short"])
def test_plotlys_tool_bar_is_off(name: str) -> None:
    """Nothing stands over the chart that nobody asked for, and of a chart too short to draw neither."""
    assert drawn(name)["config"]["displayModeBar"] is False


@pytest.mark.parametrize("name", SCRIPTED_RUNS)
def test_plotly_accepts_every_property(name: str) -> None:
    """`go.Figure` raises on any that it does not know; of the whole session, and of its cell."""
    session = shared_run(name)
    assert isinstance(figure(session), go.Figure)
    assert isinstance(figure(session, session.spans[0]), go.Figure)


SAVED = [*map(shared_run, SCRIPTED_RUNS), many_steps(3000), training(6), training(300)]


@pytest.mark.parametrize("session", SAVED, ids=repr)
def test_what_a_cell_leaves_in_a_saved_notebook_is_bounded(session: Session) -> None:
    """The chart below 60 kB, and with its card below 80 kB as notebooks are saved, item by item on lines."""
    span = session.spans[0]
    chart = chart_bundle(session, span) or {}
    card = card_bundle(session, span, with_chart=bool(chart))
    plotly = json.dumps(chart.get(PLOTLY_MIME, {}), separators=(",", ":"))

    assert len(plotly.encode()) < 60_000
    assert len(json.dumps([card, chart], indent=1).encode()) < 80_000


def test_the_bundle_has_a_form_for_every_front_end() -> None:
    """A chart is Plotly's JSON, an SVG in HTML and a line of text, for whoever shows it."""
    session = shared_run("training")
    bundle = chart_bundle(session, session.spans[0])
    assert bundle is not None
    assert set(bundle) == {PLOTLY_MIME, "text/html", "text/plain"}
    assert bundle["text/plain"] == (
        'memwatch "fine-tune" chart: cuda:0 over 11.6 s, peak 6.99 GiB exact'
    )


def test_the_peak_is_marked_within_the_step_that_had_it() -> None:
    """The mark stands in the step with the highest exact peak, wherever the samples were."""
    session = shared_run("training")
    cell = session.spans[0]
    highest = max(
        (span for span in session.spans if span.kind == "step"),
        key=lambda span: span.peaks["cuda:0/allocated"].value,
    )
    scene = build_scene(session, cell, columns=300)
    assert scene is not None
    assert scene.peak is not None
    assert highest.stop is not None
    assert highest.start <= scene.peak.time <= highest.stop


def test_a_chart_of_a_later_span_begins_at_zero() -> None:
    """The time axis of a span counts from the span's own start to its end."""
    session = shared_run("training")
    evaluate = next(span for span in session.spans if span.kind == "evaluate")
    times = unpacked(trace(figure_dict(session, evaluate), "allocated")["x"])
    assert times.min() == 0.0
    assert times.max() == pytest.approx(1000 * evaluate.duration, abs=0.1)


def test_many_bars_fold_into_groups_that_keep_the_worst() -> None:
    """However many steps there are, the bars are bounded and the worst has one of its own."""
    bars = lay_lanes(many_steps(3000), "cuda:0", 0.0, 3000.0)
    worst = [bar for bar in bars if bar.worst]
    assert len(bars) <= MOST_BARS + 1
    assert len(worst) == 1
    assert worst[0].lines == ("step 1001 · 950 ms · the worst", "peak 9.00 GiB exact")


def test_in_a_notebook_words_have_its_colour_but_not_at_the_pointer() -> None:
    """The axes', the legend's and those in the plot; the box at the pointer is dark on every page."""
    session = shared_run("training")
    bundle = chart_bundle(session, session.spans[0])
    assert bundle is not None
    data, layout = bundle[PLOTLY_MIME]["data"], bundle[PLOTLY_MIME]["layout"]
    keys = [one["name"] for one in data if "name" in one and one.get("showlegend", True)]
    words = [one["text"] for one in layout["annotations"]]
    words += keys + layout["xaxis"]["ticktext"] + layout["yaxis"]["ticktext"]
    assert len(words) > 15
    assert all(one.startswith(INKED) and one.endswith("</span>") for one in words)
    assert not any("fullData.name" in one.get("hovertemplate", "") for one in data)
    assert {one["meta"] for one in data if "meta" in one} >= {"allocated", "reserved"}
    assert plain_words(bundle[PLOTLY_MIME])["layout"] == drawn("training")["layout"]


@pytest.mark.parametrize("page", ["#ffffff", "#111111"])
def test_text_reads_on_light_and_dark_pages_as_well_as_one_grey_can(page: str) -> None:
    """No grey reaches 4.5 on both: √(contrast of the pages) = 4.35 is the most there is."""
    most = contrast("#ffffff", "#111111") ** 0.5
    assert contrast(palette.INK, page) > most - 0.05


def test_the_legend_names_the_colours_of_lanes_and_the_hatching() -> None:
    """What is done between steps, the worst step, and where nothing was sampled."""
    shown = [one for one in drawn("hour with gaps")["data"] if one.get("showlegend", True)]
    assert {"saving", "worst step", "not sampled"} <= {one["name"] for one in shown}


@pytest.mark.parametrize("size", [340, 640, 840])
def test_no_value_stands_in_the_room_above_the_vertical_axis(size: int) -> None:
    """Plotly leaves some there; ticks for a line that is shown on demand begin above it."""
    stage = Stage("host", gpus=0, interval=0.5)
    with stage.span("cell", "cell"):
        stage.hold({"cpu": size * MIB}, 2.0)
    axis = figure_dict(stage.finish())["layout"]["yaxis"]
    top = axis["range"][1]

    assert axis["autorange"] is True
    assert [value for value in axis["tickvals"] if top < value <= 1.05 * top] == []


def test_what_is_too_short_says_so_in_an_empty_figure() -> None:
    """Without axes, for whoever asks for one of a cell that was over at once."""
    session = shared_run("short")
    drawn = figure_dict(session, session.spans[0])
    (word,) = drawn["layout"]["annotations"]

    assert drawn["data"] == []
    assert word["text"] == "too short to chart"
    assert (word["xref"], word["yref"], word["x"], word["y"]) == ("paper", "paper", 0.5, 0.5)
    assert not any(drawn["layout"][axis]["visible"] for axis in ("xaxis", "yaxis"))
    assert word["showarrow"] is False


@pytest.mark.parametrize(("labels", "told"), [(("", ""), "block"), (("load", "load"), "load")])
def test_a_bar_without_a_name_says_what_it_is(labels: tuple[str, ...], told: str) -> None:
    """Any other has its own name, and what it took."""
    recorder = recorder_of()
    for at, label in enumerate(labels):
        span = recorder.open_span("block", label, read(recorder, 2.0 * at, GIB))
        recorder.close_span(span.id, read(recorder, 2.0 * at + 1, GIB), {})
    bars = lay_lanes(recorder.session, "cuda:0", 0.0, 4.0)

    assert [(bar.label, bar.lines[0]) for bar in bars] == [(told, f"{told} · 1.0 s")] * 2
    assert [(bar.start, bar.stop, bar.lane) for bar in bars] == [(0.0, 1.0, 0), (2.0, 3.0, 0)]
