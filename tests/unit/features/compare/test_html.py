"""The comparison as people see it: table, picture, text, and the list of what there is."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hfmem_widget.analysis.cell import Cell
from hfmem_widget.analysis.facts import NEXT_TO_NOTHING
from hfmem_widget.analysis.record import Record
from hfmem_widget.analysis.record_of import record_of, whole
from hfmem_widget.features.compare.html import chart_bundle, table_bundle, whole_bundle
from hfmem_widget.features.compare.model import Comparison, Difference, Figure, difference
from hfmem_widget.features.compare.scene import step_ticks
from hfmem_widget.features.compare.table import MOST_CELLS, compare
from hfmem_widget.features.compare.text import (
    _part,
    _signed_bytes,
    _spread,
    change_text,
    of_something,
    part_columns,
    percent_text,
)
from hfmem_widget.session import (
    Peak,
)
from hfmem_widget.text import GIB, MIB, format_bytes, format_duration, format_rate
from hfmem_widget.view.chart.figure import PLOTLY_MIME
from hfmem_widget.view.table import aligned
from tests.data.modules import loaded_by
from tests.data.parted import NAN
from tests.data.plotly_words import plain_words
from tests.scenes import shared_run
from tests.unit.view.test_hostile_text import CORPUS, Strict, strings


def kept(run: str, label: str, scale: float = 1.0, number: int = 1) -> Record:
    """Return a record of a scripted run, its peaks scaled."""
    session = shared_run(run)
    cell = Cell(number, "", "")
    record = record_of(session, whole(session), label=label, cell=cell)
    devices = []
    for one in record.devices:
        curve, steps = one.curve * np.float32(1), one.steps.copy()
        curve[1] *= scale
        steps[:, 2:4] *= scale
        peak = Peak(one.peak.value * scale, one.peak.certainty)
        parts = {name: value * scale for name, value in one.at_peak.items()}
        devices.append(replace(one, peak=peak, at_peak=parts, curve=curve, steps=steps))
    return replace(record, devices=tuple(devices))


def two(run: str = "steps", **options: Any) -> Comparison:
    runs = {"base": [kept(run, "base")], "smaller": [kept(run, "smaller", 0.5, number=2)]}
    return compare(runs, **options)


def text(html: str) -> str:
    """Return what is left when a front end drops all markup."""
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def drawn(comparison: Comparison) -> dict[str, Any]:
    return plain_words(chart_bundle(comparison)[PLOTLY_MIME])


def test_the_table_reads_without_any_markup() -> None:
    """Names, figures, differences and parts stand in their order."""
    assert text(table_bundle(two())["text/html"]).startswith(
        "memcompare cuda:0 NVIDIA H200 compared with base "
        "● base baseline · cell [1] ● smaller cell [2] "
        "allocated, peak 7.01 GiB exact 3.51 GiB exact \u22123.51 GiB · \u221250 % "
        "left behind +3.75 GiB +3.75 GiB ±0 "
    )


def test_many_cells_are_rows() -> None:
    """The longer side of a table goes down the page, which scrolls by itself."""
    runs = {name: [kept("steps", name)] for name in "abcdefgh"}
    told = text(table_bundle(compare(runs))["text/html"])
    assert "cell allocated, peak left behind" in told


def test_the_chart_has_a_height_and_a_legends_place_of_its_own() -> None:
    """As the chart of a cell: neither an output's height nor a new width changes where anything is."""
    drawn = chart_bundle(two())[PLOTLY_MIME]
    assert "responsive" not in drawn["config"]
    assert drawn["layout"]["margin"]["autoexpand"] is False


def test_what_scrolls_is_reached_with_the_keyboard() -> None:
    """Every table that may be wider than its frame takes the focus, and shows that there is more."""
    html = table_bundle(two())["text/html"]
    boxes = re.findall(r"<div[^>]*overflow-x:auto[^>]*>", html)
    assert len(boxes) == html.count("<table")
    assert all('tabindex="0"' in box and "linear-gradient" in box for box in boxes)


@pytest.mark.parametrize(
    ("before", "told"), [(0.1 * MIB, "\u22120.07 MiB"), (10 * MIB, "\u22127.00 MiB · \u221270 %")]
)
def test_of_next_to_nothing_there_is_no_percentage(before: float, told: str) -> None:
    """0.07 MiB less is 45 % of what no figure speaks of."""
    change = Difference(-0.7 * before, -70.0)
    assert change_text(of_something(change, before + change.value), format_bytes) == told


def test_plain_text_has_the_same_figures() -> None:
    """A terminal shows the table, aligned."""
    told = table_bundle(two())["text/plain"]
    lines = told.splitlines()

    assert lines[0] == "memcompare · cuda:0 NVIDIA H200 · compared with base"
    assert "7.01 GiB exact" in told
    assert "\u22123.51 GiB · \u221250 %" in told
    assert "optimizer" in told
    assert len({line.rindex("s") for line in lines[2:5] if line.endswith(" s")}) == 1


def test_repeats_show_their_range() -> None:
    """The median, the range, and how many runs."""
    runs = [kept("steps", "base", scale) for scale in (1.0, 1.1, 0.9)]
    told = text(table_bundle(compare({"base": runs}))["text/html"])

    assert "● base 3 runs allocated, peak 7.01 GiB exact 6.31\u20137.71 GiB" in told
    told = text(table_bundle(compare({"base": runs[:2]}))["text/html"])
    assert "● base 2 runs allocated, peak 7.36 GiB exact 7.01\u20137.71 GiB" in told


@pytest.mark.parametrize(
    ("run", "peak"),
    [("at least", "≥ 6.99 GiB"), ("training", "6.99 GiB exact"), ("cpu", "918.4 MiB sampled")],
)
def test_a_peak_says_how_it_is_known(run: str, peak: str) -> None:
    """In the table and beside the bar alike."""
    comparison = compare({"a": [kept(run, "a")]})
    assert peak in text(table_bundle(comparison)["text/html"])
    assert peak in text(chart_bundle(comparison)["text/html"])


def test_columns_that_nobody_fills_are_not_there() -> None:
    """Without steps there is no pace; without parts no table of them."""
    told = text(table_bundle(two("short"))["text/html"])
    assert "samples/s" not in told
    assert "steps/s" not in told
    assert "at the peak" not in told


def test_the_host_has_its_own_words() -> None:
    """On the CPU memory is what is private and what is resident."""
    told = text(table_bundle(two("cpu"))["text/html"])
    assert "private memory, peak" in told
    assert "resident, peak" in told


def test_the_picture_has_a_form_for_every_front_end() -> None:
    """Plotly, HTML and plain text."""
    bundle = chart_bundle(two())
    assert set(bundle) == {PLOTLY_MIME, "text/html", "text/plain"}
    assert bundle["text/plain"] == (
        "memcompare chart: allocated, highest of each step of base, smaller"
    )


def test_one_output_has_table_and_picture() -> None:
    """What an object shows of itself is complete without Plotly."""
    bundle = two()._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    assert "<table" in bundle["text/html"]
    assert "<svg" in bundle["text/html"]
    assert bundle == whole_bundle(two())


def test_each_cell_has_a_line_and_a_stack_of_its_parts() -> None:
    """The lines are aligned by step; the bars add up to the peaks."""
    figure = drawn(two())
    lines = [one for one in figure["data"] if one["type"] == "scatter"]
    bars = [one for one in figure["data"] if one["type"] == "bar"]

    assert [one["name"] for one in lines] == ["base", "smaller"]
    totals = np.sum([one["x"] for one in bars], axis=0)
    assert totals == pytest.approx([7.01, 3.51], abs=0.01)
    assert (bars[0]["name"], bars[0]["showlegend"]) == ("weights", True)


def test_repeats_have_a_band() -> None:
    """Where a cell was run several times the range is filled."""
    runs = [kept("steps", "base", scale) for scale in (1.0, 1.1, 0.9)]
    figure = drawn(compare({"base": runs}))
    assert [one.get("fill") for one in figure["data"][:2]] == ["toself", None]


def test_without_parts_a_bar_is_the_peak() -> None:
    """Nothing is told apart that was not found."""
    bars = [one for one in drawn(two("two gpus"))["data"] if one["type"] == "bar"]
    assert [one["name"] for one in bars] == ["allocated"]
    assert bars[0]["showlegend"] is False


@pytest.mark.parametrize("run", ["steps", "100,000 steps", "hour with gaps", "eight gpus"])
@pytest.mark.parametrize("by", ["step", "time"])
def test_the_plotly_part_stays_below_60_kb(run: str, by: str) -> None:
    """Also with as many cells as there may be, each with repeats."""
    base = kept(run, "x" * 10_000)
    runs = {f"{at} {'x' * 10_000}": [base, base, base] for at in range(MOST_CELLS)}
    bundle = chart_bundle(compare(runs, by=by))

    assert len(json.dumps(bundle[PLOTLY_MIME], separators=(",", ":")).encode()) < 60_000
    assert len(bundle["text/html"].encode()) < 120_000


def test_nothing_drawn_for_the_notebook_imports_plotly_or_pandas() -> None:
    """Their import costs a second."""
    code = (
        "from tests.scenes import scripted_run; import hfmem_widget; "
        "s = scripted_run('steps'); assert hfmem_widget.compare(s, s)._repr_mimebundle_()"
    )
    assert loaded_by(code) & {"plotly", "pandas", "torch"} == set()


def test_plotly_takes_the_picture() -> None:
    """Its own validation finds nothing that it does not know."""
    import plotly.graph_objects as go

    for comparison in (two(), two("cpu", by="time"), two("two gpus"), two("short")):
        figure = drawn(comparison)
        go.Figure(data=figure["data"], layout=figure["layout"])


@pytest.mark.parametrize("label", CORPUS.values(), ids=CORPUS)
def test_a_hostile_label_is_text_everywhere(label: str) -> None:
    """No tag, attribute, MathJax or control character of a label's gets through."""
    comparison = compare({label: [kept("steps", label)], "b": [kept("steps", "b")]})
    output = whole_bundle(comparison)
    Strict(output["text/html"])
    assert all(char.isprintable() or char == "\n" for char in output["text/plain"])
    texts = [*strings(drawn(comparison))]
    assert texts
    for told in texts:
        assert not re.search(r"<(?!/?b>|/?extra>)", told)
        assert "$" not in told


def test_a_note_is_told_to_its_end() -> None:
    """However long the label in it is."""
    label = "a long name " * 9
    told = replace(two(), notes=(f"{label}has nothing for the chart, which is without it.",))
    assert "which is without it." in whole_bundle(told)["text/html"]


@pytest.mark.parametrize(
    ("value", "baseline", "said"),
    [
        (8 * MIB, 10 * MIB, "\u22122.00 MiB · \u221220 %"),
        (10.5 * MIB, 10 * MIB, "+0.50 MiB · +5.0 %"),
        (10 * MIB, 10 * MIB, "±0"),
        (10 * MIB + 1, 10 * MIB, "±0"),
        (2 * MIB, 0.0, "+2.00 MiB"),
        (float("nan"), 1.0, ""),
    ],
)
def test_a_difference_reads_with_sign_and_percent(value: float, baseline: float, said: str) -> None:
    """What cannot be seen in three digits is no difference; without a base there is no percent."""
    assert change_text(difference(value, baseline), format_bytes) == said


def test_a_small_percentage_keeps_a_digit() -> None:
    """Whole numbers from ten up, one decimal below."""
    assert [percent_text(one) for one in (0.04, -3.44, 12.3)] == ["±0 %", "\u22123.4 %", "+12 %"]


def test_rates_have_three_digits_or_all() -> None:
    """Below a thousand three digits, however slow it is, from there on whole numbers."""
    rates = 1 / 600, 0.321, 34.78, 2804.4
    assert [format_rate(one) for one in rates] == ["0.00167", "0.321", "34.8", "2,804"]


@pytest.mark.parametrize(
    ("first", "last", "texts"),
    [
        (1, 60, ("step 1", "10", "20", "30", "40", "50", "60")),
        (1, 3, ("step 1", "2", "3")),
        (501, 520, ("step 501", "505", "510", "515", "520")),
        (1, 100_000, ("step 1", "20,000", "40,000", "60,000", "80,000", "100,000")),
    ],
)
def test_steps_are_marked_at_round_numbers(first: int, last: int, texts: tuple[str, ...]) -> None:
    """The first step, then round numbers up to the last."""
    assert step_ticks(first, last).texts == texts


def test_plain_text_stands_in_columns() -> None:
    """Names to the left, figures to the right, all rows of a table equally wide."""
    rows = aligned([["a", "1", "22"], ["long", "333", "4"]]).splitlines()

    assert rows == ["a       1  22", "long  333   4"]


def test_parts_are_told_of_the_cells_that_have_them() -> None:
    """What was found of one cell alone is not known of the other, which is no difference."""
    whole = kept("steps", "whole")
    bare = replace(
        whole, label="bare", devices=tuple(replace(one, at_peak={}) for one in whole.devices)
    )
    column = part_columns(compare({"whole": [whole], "bare": [bare]}))[0]
    size = format_bytes(whole.devices[0].at_peak[column.part])

    assert [(value, change) for value, _, change in column.cells] == [(size, ""), ("n/a", "")]
    column = part_columns(compare({"bare": [bare], "whole": [whole]}))[0]
    assert [(value, change) for value, _, change in column.cells] == [("n/a", ""), (size, "")]


@pytest.mark.parametrize(
    ("before", "after", "value", "change"),
    [
        (2 * GIB, 3 * GIB, "3.00 GiB", "+1.00 GiB · +50 %"),
        (None, 3 * GIB, "3.00 GiB", "+3.00 GiB"),
        (3 * GIB, None, "0", "\u22123.00 GiB"),
        (None, None, "0", "±0"),
    ],
)
def test_a_part_that_one_cell_lacks_is_nothing_there(
    before: float | None, after: float | None, value: str, change: str
) -> None:
    """It went, or it came, and in percent of nothing there is no saying."""
    base, other = two().cells
    one = replace(base, at_peak={"x": GIB} | ({} if before is None else {"weights": before}))
    two_ = replace(other, at_peak={"x": GIB} | ({} if after is None else {"weights": after}))

    assert _part(two_, one, "weights") == (value, "", change)


@pytest.mark.parametrize(
    ("value", "told"),
    [(0.0, "0.00"), (9.994, "9.99"), (34.84, "34.8"), (999.4, "999.4"), (999.5, "1,000"),
     (-999.5, "\u22121,000"), (2804.4, "2,804")],
)  # fmt: skip
def test_a_rate_has_three_digits_or_none_behind_the_point(value: float, told: str) -> None:
    """From a thousand on they are whole numbers."""
    assert format_rate(value).replace("-", "\u2212") == told


@pytest.mark.parametrize(
    ("percent", "told"),
    [(NAN, ""), (0.0, "±0 %"), (0.04, "±0 %"), (0.06, "+0.1 %"), (-0.06, "\u22120.1 %"),
     (9.94, "+9.9 %"), (9.95, "+10 %"), (-9.95, "\u221210 %"), (156.4, "+156 %")],
)  # fmt: skip
def test_a_percentage_has_a_digit_behind_the_point_below_ten(percent: float, told: str) -> None:
    """And a sign, unless it reads as nothing."""
    assert percent_text(percent) == told


@pytest.mark.parametrize(
    ("change", "percent", "told"),
    [
        (NAN, NAN, ""),
        (0.0, 0.0, "±0"),
        (1000.0, 50.0, "±0"),
        (-GIB, NAN, "\u22121.00 GiB"),
        (GIB, 50.0, "+1.00 GiB · +50 %"),
    ],
)
def test_a_change_that_cannot_be_seen_is_none(change: float, percent: float, told: str) -> None:
    """Whatever it is in percent."""
    assert change_text(Difference(change, percent), format_bytes) == told


@pytest.mark.parametrize(
    ("base", "said"), [(NEXT_TO_NOTHING - 1, False), (NEXT_TO_NOTHING, True), (GIB, True)]
)
def test_of_next_to_nothing_no_percentage_is_told(base: float, *, said: bool) -> None:
    """From a MiB on it is."""
    told = of_something(Difference(-0.5 * base, -50.0), 0.5 * base)

    assert math.isnan(told.percent) is not said
    assert NEXT_TO_NOTHING == MIB


@pytest.mark.parametrize(
    ("low", "high", "runs", "shown", "told"),
    [
        (GIB, 2 * GIB, 1, format_bytes, ""),
        (GIB, 2 * GIB, 2, format_bytes, "1.00\u20132.00 GiB"),
        (GIB, GIB + 1000, 2, format_bytes, ""),
        (-GIB, GIB, 2, _signed_bytes, "\u22121.00 \u2013 1.00 GiB"),
        (0.0, 512 * MIB, 2, format_bytes, "0.00\u2013512.0 MiB"),
        (1.0, 2.0, 2, format_rate, "1.00\u20132.00"),
        (1.0, 1.001, 2, format_rate, ""),
        (1.0, 2.0, 2, format_duration, "1.0 s\u20132.0 s"),
    ],
)
def test_a_range_has_its_unit_once(
    low: float, high: float, runs: int, shown: Callable[[float], str], told: str
) -> None:
    """Of runs that read alike there is none."""
    assert _spread(Figure(low, low, high, runs), shown) == told


@pytest.mark.parametrize(
    ("first", "last", "texts"),
    [
        (1, 6, ["step 1", "2", "3", "4", "5", "6"]),
        (1, 60, ["step 1", "10", "20", "30", "40", "50", "60"]),
        (5, 60, ["step 10", "20", "30", "40", "50", "60"]),
        (4, 60, ["step 4", "10", "20", "30", "40", "50", "60"]),
        (1.5, 1.5, ["step 2"]),
        (0, 1, ["step 0", "1"]),
        (0, 30_000, ["step 0", "5,000", "10,000", "15,000", "20,000", "25,000", "30,000"]),
    ],
)
def test_steps_have_ticks_at_round_numbers(first: float, last: float, texts: list[str]) -> None:
    """And at the first, where the next one is more than half of their distance away."""
    assert list(step_ticks(first, last).texts) == texts
