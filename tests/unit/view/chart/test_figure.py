"""The still chart as Plotly is given it, which has what the scene has, and as a saved notebook carries it."""

import json
from functools import cache
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from hfmem_widget.analysis.curve import runs_of
from hfmem_widget.session import Peak, Session
from hfmem_widget.text import GIB, MIB
from hfmem_widget.view import palette
from hfmem_widget.view.card import card_bundle
from hfmem_widget.view.chart.figure import (
    PLOTLY_MIME,
    chart_bundle,
    figure,
    figure_columns,
    figure_dict,
)
from hfmem_widget.view.chart.lanes import MOST_BARS, lay_lanes
from hfmem_widget.view.chart.paint_plotly import unpacked
from tests.data.parted import training
from tests.data.plotly_words import INKED, plain_words
from tests.data.recorders import KEY, read, recorder_of
from tests.scenes import SCRIPTED_RUNS, shared_run
from tests.scenes.contrast import contrast
from tests.scenes.stage import Stage
from tests.unit.view.chart.test_guides import budget, crossing, oom, peak_of, run, scene_of, trend
from tests.unit.view.chart.test_layers import NAMES

CHARTED = [name for name in SCRIPTED_RUNS if name != "short"]


@cache
def drawn(name: str) -> dict[str, Any]:
    session = shared_run(name)
    return figure_dict(session, session.spans[0])


def trace(figure: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in figure["data"] if one.get("name") == name)


@cache
def many_steps() -> Session:
    recorder = recorder_of(GIB)
    cell = recorder.open_span("cell", "long", recorder.session.last_sample)
    for step in range(3000):
        span = recorder.open_span("step", f"step {step + 1}", read(recorder, step + 0.0, GIB))
        peak = (9 if step == 1000 else 2 + step % 3) * GIB
        recorder.close_span(span.id, read(recorder, step + 0.9, GIB), {KEY: Peak(peak, "exact")})
    recorder.close_span(cell.id, read(recorder, 3000.0, GIB), {KEY: Peak(9 * GIB, "exact")})
    return recorder.session


@pytest.mark.parametrize("name", ["training", "short"])
def test_plotlys_tool_bar_is_off(name: str) -> None:
    """No tool bar stands over a chart, nor over one that is too short to draw."""
    assert drawn(name)["config"]["displayModeBar"] is False


@pytest.mark.parametrize("name", SCRIPTED_RUNS)
def test_plotly_accepts_every_property(name: str) -> None:
    """`go.Figure`, which raises on unknown properties, takes the chart of a session and of its cell."""
    session = shared_run(name)
    assert isinstance(figure(session), go.Figure)
    assert isinstance(figure(session, session.spans[0]), go.Figure)


SAVED = [*map(shared_run, SCRIPTED_RUNS), many_steps(), training(6), training(300)]


@pytest.mark.parametrize("session", SAVED, ids=repr)
def test_what_a_cell_leaves_in_a_saved_notebook_is_bounded(session: Session) -> None:
    """A chart is below 60 kB, and with its card below 80 kB as notebooks are saved."""
    span = session.spans[0]
    chart = chart_bundle(session, span) or {}
    card = card_bundle(session, span, with_chart=bool(chart))
    plotly = json.dumps(chart.get(PLOTLY_MIME, {}), separators=(",", ":"))

    assert len(plotly.encode()) < 60_000
    assert len(json.dumps([card, chart], indent=1).encode()) < 80_000


def test_the_bundle_has_a_form_for_every_front_end() -> None:
    """A chart is Plotly's JSON, an SVG in HTML, and a line of text."""
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
    peak = peak_of(scene_of(session, cell, columns=300))
    assert highest.stop is not None
    assert highest.start <= peak.time <= highest.stop


def test_a_chart_of_a_later_span_begins_at_zero() -> None:
    """The time axis of a span counts from the span's own start to its end."""
    session = shared_run("training")
    evaluate = next(span for span in session.spans if span.kind == "evaluate")
    times = unpacked(trace(figure_dict(session, evaluate), "allocated")["x"])
    assert times.min() == 0.0
    assert times.max() == pytest.approx(1000 * evaluate.duration, abs=0.1)


def test_many_bars_fold_into_groups_that_keep_the_worst() -> None:
    """However many steps there are, the bars are bounded and the worst has one of its own."""
    bars = lay_lanes(many_steps(), "cuda:0", 0.0, 3000.0)
    worst = [bar for bar in bars if bar.worst]
    assert len(bars) <= MOST_BARS + 1
    assert len(worst) == 1
    assert worst[0].lines == ("step 1001 · 950 ms · the worst", "peak 9.00 GiB exact")


def test_in_a_notebook_words_have_its_colour_but_not_at_the_pointer() -> None:
    """Words of axes, legend and plot have the page's colour; the box at the pointer is dark on every page."""
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
    """The legend has work between steps, the worst step, and the hatching where nothing was sampled."""
    legend = [one for one in drawn("hour with gaps")["data"] if one.get("showlegend", True)]
    assert {"saving", "worst step", "not sampled"} <= {one["name"] for one in legend}


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


def test_the_figure_of_a_session_too_short_to_chart_says_so() -> None:
    """The figure says that the session is too short, and has no axes."""
    session = shared_run("short")
    figure = figure_dict(session, session.spans[0])
    (word,) = figure["layout"]["annotations"]

    assert figure["data"] == []
    assert word["text"] == "too short to chart"
    assert (word["xref"], word["yref"], word["x"], word["y"]) == ("paper", "paper", 0.5, 0.5)
    assert not any(figure["layout"][axis]["visible"] for axis in ("xaxis", "yaxis"))
    assert word["showarrow"] is False


Points = list[tuple[float, float]]

UNITS = {"h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3}
"""Seconds."""

DIGIT = 1e-4
"""Instants are written to as many digits, in the unit of their axis."""


class Shown:
    """A chart, and the scene it was drawn from."""

    def __init__(self, session: Session | str) -> None:
        session = shared_run(session) if isinstance(session, str) else session
        figure = figure_dict(session, session.spans[0])
        self.scene = scene_of(session, session.spans[0], columns=figure_columns(session))
        self.data: list[dict[str, Any]] = figure["data"]
        self.layout: dict[str, Any] = figure["layout"]
        self.plot = self.layout["height"] - sum(self.layout["margin"][one] for one in "tb")
        self.second = 1 / UNITS[self.layout["xaxis"]["ticksuffix"].strip()]
        """In the unit of the time axis, as pointing at an instant says it."""
        self.fine = 0.51 * DIGIT / self.second
        """Seconds that an instant is off at most."""

    def named(self, name: str) -> dict[str, Any]:
        return trace({"data": self.data}, name)

    @property
    def lanes(self) -> tuple[dict[str, Any], dict[str, Any]]:
        boxes, words = [one for one in self.data if one.get("yaxis") == "y2"]
        assert (boxes["type"], words["mode"]) == ("bar", "text")
        return boxes, words

    def points(self, one: dict[str, Any]) -> Points:
        """Return what a trace draws, in seconds and bytes."""
        x, y = unpacked(one["x"]), unpacked(one["y"])
        assert len(x) == len(y)
        times, values = x / self.second, y.astype(float) * self.scene.frame.unit[0]
        return list(zip(times.tolist(), values.tolist(), strict=True))

    def draws(self, one: dict[str, Any], expected: Points) -> bool:
        """Return whether a trace has these points and no other, as exactly as it can be written."""
        x, y = np.array(self.points(one)).T
        time, value = np.array(expected).T
        return x.shape == time.shape and bool(
            np.allclose(x, time, rtol=1e-6, atol=self.fine)
            and np.allclose(y, value, rtol=1e-6, atol=1e-4, equal_nan=True)
        )


def seconds_of(text: str) -> float:
    if ":" in text:
        whole, _, rest = text.partition(":")
        return 60 * int(whole) + int(rest)
    sizes = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
    number, unit, *minutes = text.split()
    return float(number) * sizes[unit] + 60 * sum(map(int, minutes))


def grounded(runs: list[Points]) -> Points:
    return [point for run in runs for point in [(run[0][0], 0.0), *run, (run[-1][0], 0.0)]]


@pytest.mark.parametrize("name", CHARTED)
def test_every_line_has_the_points_of_its_series(name: str) -> None:
    """A line has the chosen points in the unit of the axis; a break is a missing value."""
    chart = Shown(name)
    checked = 0
    for line in chart.scene.lines:
        traces = [one for one in chart.data if one.get("name") == chart.scene.name(line)]
        if line.metric == "device_used":
            assert chart.draws(traces[0], grounded(runs_of(line.points)))
        else:
            assert chart.draws(traces[-1], line.points)
            checked += 1
    assert checked


@pytest.mark.parametrize("name", CHARTED)
def test_every_layer_has_its_upper_edge_and_its_own_size(name: str) -> None:
    """A layer goes down to zero at a break, and stands in the legend from the bottom up, before the lines."""
    chart = Shown(name)
    for rank, layer in enumerate(chart.scene.layers, start=1):
        trace = chart.named(layer.name)
        broken = len(layer.runs) > 1
        ends = [len(run) for run in layer.runs]
        parts = np.split(layer.heights, np.cumsum(ends)[:-1])
        sizes = [one for run in parts for one in ((run[0], *run, run[-1]) if broken else run)]

        assert chart.draws(trace, grounded([*layer.runs]) if broken else layer.runs[0])
        assert unpacked(trace["customdata"]) * chart.scene.frame.unit[0] == pytest.approx(
            sizes, rel=1e-5
        )
        assert (trace["fill"], trace["fillcolor"]) == ("tozeroy", palette.PARTS[NAMES[layer.tip]])
        assert trace["line"]["color"] == "rgba(0,0,0,.3)"
        # Down the sides of a gap all of them run over each other.
        assert (trace["line"]["width"] == 1) is not broken
        assert 0 < trace["line"]["width"] <= 1
        assert trace["legendrank"] == rank
    first = [one["name"] for one in chart.data if one.get("legendrank", 1000) < 1000]
    last = [one for one in chart.data if one.get("legendrank", 1000) > 1000]
    assert first == [one.name for one in reversed(chart.scene.layers)]
    assert [one["type"] for one in last] == ["bar"] * len(last)


@pytest.mark.parametrize("name", CHARTED)
def test_ticks_stand_at_the_values_of_their_labels(name: str) -> None:
    """Both axes begin at zero and end with the data; times are labelled to their end."""
    chart = Shown(name)
    x, y = chart.layout["xaxis"], chart.layout["yaxis"]
    divisor, unit = chart.scene.frame.unit

    assert [float(one.split()[0]) for one in y["ticktext"]] == pytest.approx(
        y["tickvals"], abs=1e-6
    )
    assert [seconds_of(one) * chart.second for one in x["ticktext"]] == pytest.approx(
        x["tickvals"], abs=1e-6
    )
    # Those above are for what a click in the legend brings.
    inside = [value <= chart.scene.frame.levels.values[-1] for value in y["tickvals"]].count(True)
    units = [one.split()[1:] for one in y["ticktext"]]
    assert units[:inside] == [[]] * (inside - 1) + [[unit]]
    assert min(len(x["tickvals"]), len(y["tickvals"])) > 2
    assert x["range"] == [0, pytest.approx(chart.scene.duration * chart.second, abs=DIGIT)]
    assert x["tickvals"][-1] <= x["range"][1]
    assert 2 <= chart.scene.duration * chart.second < 2 * 60
    assert y["range"] == pytest.approx([0, chart.scene.top / divisor], rel=1e-4)
    assert x["showgrid"] is False
    assert y["fixedrange"] is True
    assert y["tickvals"][inside - 1] * divisor <= chart.scene.ceiling * (1 + 1e-9)
    assert {one["tickmode"] for one in (x, y)} == {"array"}
    assert not any(one[flag] for one in (x, y) for flag in ("zeroline", "showline", "tickangle"))


def test_what_would_squeeze_the_process_on_the_host_waits_in_the_legend() -> None:
    """The axis is ruled by what the process uses, and grows once a click brings the rest."""
    chart = Shown("cpu")
    (resident,) = (one for one in chart.data if one.get("name") == "resident")
    highest = chart.scene.ceiling / chart.scene.frame.unit[0]

    assert resident["visible"] == "legendonly"
    assert max(unpacked(resident["y"])) > highest
    assert chart.layout["yaxis"]["autorange"] is True
    assert not any("visible" in one for one in Shown("training").data)


@pytest.mark.parametrize("name", CHARTED)
def test_each_bar_has_its_time_its_colour_and_its_words(name: str) -> None:
    """Bars are in order of drawing, each as long as its span took, or as short as can be seen."""
    chart = Shown(name)
    scene, (boxes, _) = chart.scene, chart.lanes
    least = scene.duration / 400
    middles, widths = (unpacked(boxes[one]) / chart.second for one in ("x", "width"))
    tops, heights = unpacked(boxes["base"]), unpacked(boxes["y"])

    assert scene.bars
    assert "orientation" not in boxes
    assert boxes["hovertemplate"] == "%{hovertext}<extra></extra>"
    assert boxes["marker"]["color"] == [
        palette.bar(one.kind, one.lane, worst=one.worst) for one in scene.bars
    ]
    assert boxes["hovertext"] == ["<br>".join(one.lines) for one in scene.bars]
    assert tops + heights / 2 == pytest.approx([one.lane for one in scene.bars], abs=1e-6)
    assert heights == pytest.approx(0.84)
    for bar, middle, width in zip(scene.bars, middles.tolist(), widths.tolist(), strict=True):
        length = max(bar.stop - bar.start, least)
        seam = length - width
        assert middle - width / 2 == pytest.approx(bar.start, abs=2 * chart.fine)
        assert seam == pytest.approx(0.6 * least if length > 3 * least else 0, abs=chart.fine)


@pytest.mark.parametrize("name", CHARTED)
def test_the_peaks_mark_and_its_label_are_at_its_time(name: str) -> None:
    """The mark at its bytes, the label's foot above all that is drawn, its text on the side with room."""
    chart = Shown(name)
    peak, (divisor, _) = peak_of(chart.scene), chart.scene.frame.unit
    mark = chart.named("peak")
    (label,) = [one for one in chart.layout["annotations"] if one["text"].startswith("<b>peak")]
    share = peak.time / chart.scene.duration

    assert (mark["x"], mark["y"]) == (
        [pytest.approx(peak.time * chart.second, abs=DIGIT)],
        [pytest.approx(peak.peak.value / divisor, rel=1e-4)],
    )
    assert (label["x"], label["y"]) == (mark["x"][0], mark["y"][0])
    assert (label["ax"], label["axref"], label["ayref"]) == (label["x"], "x", "y")
    assert label["ay"] == pytest.approx(peak.label_at / divisor, rel=1e-4)
    assert label["xanchor"] == ("left" if share < 0.25 else "right" if share > 0.75 else "center")
    assert (label["yanchor"], label["showarrow"]) == ("bottom", True)
    assert mark["cliponaxis"] is mark["showlegend"] is False
    assert mark["marker"]["color"] == palette.PEAK


def test_guides_are_drawn_in_the_unit_of_the_axis() -> None:
    """Where that is minutes, a trend, a crossing and a mark stand at their minutes."""
    guides = (budget(60.0), trend(600, 1800), oom(1500.0, gib=50.0))
    session = run(*guides, findings=(crossing(900.0),), name="hour with gaps")
    chart = Shown(session)
    level, crossed = chart.named("budget 60.0 GiB"), chart.named("crossed")
    band, casing, line = [one for one in chart.data if one.get("name") == "+1 a step"]
    mark = chart.named("out of memory")
    (word,) = [one for one in chart.layout["annotations"] if one["text"].startswith("out of")]
    duration = chart.scene.duration

    assert chart.second == 1 / 60
    assert chart.draws(level, [(at / 16 * duration, 60 * GIB) for at in range(17)])
    assert chart.draws(line, [(600 + at * 75, (1 + at / 4) * GIB) for at in range(17)])
    assert chart.draws(casing, [(600, GIB), (1800, 5 * GIB)])
    assert [time for time, _ in chart.points(band)] == pytest.approx([600, 1800, 1800, 600])
    assert (crossed["x"], crossed["y"]) == ([15.0], [60.0])
    assert (mark["x"], mark["y"], word["x"]) == ([25.0], [50.0], 25.0)
