"""How all ranks of a run are shown: on the card, in its line, a table, the strip and the still chart."""

import math
import re
import struct
import zlib
from base64 import b64decode
from dataclasses import replace
from typing import Any

import pytest

from hfmem_widget.session import PhaseSkew, RankRow, Ranks, RankStrip
from hfmem_widget.session.rank_records import SILENT_CELL
from hfmem_widget.session.series import TABLE
from hfmem_widget.text import GIB
from hfmem_widget.view import palette
from hfmem_widget.view.card import card_bundle
from hfmem_widget.view.chart.figure import figure_dict
from hfmem_widget.view.chart.scene import BAND
from hfmem_widget.view.chart.svg import chart_html
from hfmem_widget.view.line import compact_bundle, line, rank_phrases
from hfmem_widget.view.ranks import rank_figures, ranks_html, strip_html
from tests.data.overviews import EIGHT, MANY, TWO, Plan, overview, shared_overview
from tests.unit.view.chart.test_guides import scene_of

NAN = math.nan
HOSTILE = "<img src=x onerror=alert(1)>$x$\u202e"


def row(rank: int, peak: float, **more: object) -> RankRow:
    return replace(RankRow(rank, total=80 * GIB, peak=peak * GIB, certainty="exact"), **more)  # type: ignore[arg-type]


def ranks(*table: RankRow, **more: object) -> Ranks:
    overview = Ranks(len(table), reporting=len(table), median=5 * GIB, lowest=4 * GIB, table=table)
    return replace(overview, **more)  # type: ignore[arg-type]


def pixels(html: str) -> tuple[list[bytes], list[str]]:
    """Return the rows of the image in a strip as indices, and its colours."""
    match = re.search(r"data:image/png;base64,([^\"]+)", html)
    assert match is not None
    data, chunks = b64decode(match[1])[8:], {}
    while data:
        size, name = struct.unpack(">I4s", data[:8])
        chunks[name] = data[8 : 8 + size]
        assert zlib.crc32(name + chunks[name]) == struct.unpack(">I", data[8 + size : 12 + size])[0]
        data = data[12 + size :]
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    raw = zlib.decompress(chunks[b"IDAT"])
    palette = chunks[b"PLTE"]
    inks = [palette[at : at + 3].hex() for at in range(0, len(palette), 3)]
    clear = chunks[b"tRNS"].index(b"\0")
    inks[clear] = "clear"
    return [raw[at * (width + 1) + 1 : (at + 1) * (width + 1)] for at in range(height)], inks


def inks(html: str, row: int) -> list[str]:
    rows, colours = pixels(html)
    return [colours[cell] for cell in rows[row]]


def test_the_line_has_the_number_of_ranks_and_the_worst() -> None:
    """The median and the lowest are in the unit of the worst; missing ranks are counted."""
    session = shared_overview(MANY)

    assert line(session, session.spans[0]) == (
        'memwatch "fine-tune" · 12 min 31 s · 1,024 ranks on 128 nodes · worst peak 68.8 GiB exact '
        "(rank 417, backward) · median 54.5 · lowest 53.8 · headroom 11.0 GiB · 1,016 of 1,024 reporting"
    )


@pytest.mark.parametrize(
    ("overview", "phrases", "figures"),
    [
        (
            ranks(row(1, 7), row(0, 4)),
            ["2 ranks", "worst peak 7.00 GiB exact (rank 1)", "lowest 4.00", "headroom 73.0 GiB"],
            ["worst peak (exact)", "lowest peak", "headroom of the worst", "skew of the peaks"],
        ),
        (
            ranks(row(0, 7)),
            ["1 rank", "peak 7.00 GiB exact", "headroom 73.0 GiB"],
            ["peak (exact)", "headroom"],
        ),
        (
            Ranks(4),
            ["4 ranks"],
            ["worst peak", "median peak", "lowest peak", "headroom of the worst"],
        ),
    ],
    ids=["two", "one", "nobody"],
)
def test_two_ranks_have_no_median(overview: Ranks, phrases: list[str], figures: list[str]) -> None:
    """Two have no median, one is not the worst, and ranks that sent nothing are only counted."""
    assert rank_phrases(overview) == phrases
    assert [label for label, _, _ in rank_figures(overview)] == figures


@pytest.mark.parametrize(
    ("world", "phases", "figure"),
    [
        (8, [("backward", 4, 5, 6, 3)], ("skew in backward", "+20 %", "rank 3 over the median")),
        (2, [("backward", 4, 5, 6, 1)], ("skew in backward", "+50 %", "rank 1 over the other")),
        (8, [("forward", 5.0, 5.0, 5.04, 3)], ("skew in forward", "<1 %", "between ranks")),
        (
            4,
            [("forward", 4, 5, 5.5, 1), ("backward", 4, 5, 8, 2), ("optimizer", NAN, NAN, 9, 3)],
            ("skew in backward", "+60 %", "rank 2 over the median"),
        ),
        (2, [], ("skew of the peaks", "+75 %", "rank 3 over the other")),
    ],
)
def test_the_skew_is_that_of_the_phase_in_which_it_is_largest(
    world: int, phases: list[tuple[Any, ...]], figure: tuple[str, str, str]
) -> None:
    """The skew is over the median, or over the other of two ranks; without known phases it is the peaks'."""
    group = ranks(row(3, 7), row(0, 4), world=world, phases=[PhaseSkew(*phase) for phase in phases])

    assert rank_figures(group)[-1] == figure


def test_the_card_has_the_strip_the_table_and_the_phases() -> None:
    """Below the sentence and the worst rank's parts come strip, table and phases, in this order."""
    session = shared_overview(MANY)
    html = card_bundle(session, session.spans[0], with_chart=True)["text/html"]
    expected = [
        "on rank 417",
        "activations and temporaries",
        "peaks at 68.8 GiB",
        "ranks \N{MULTIPLICATION SIGN} time",
        ">activations<",
        ">phase, GiB<",
    ]
    places = [html.index(text) for text in (*expected, "worst peak")]

    assert places == sorted(places)


def test_ranks_stand_below_each_other_marked_or_not() -> None:
    """Where some are marked, the others keep the mark's place; where none is, there is none."""
    session, two = shared_overview(EIGHT), shared_overview(TWO)
    marked = ranks_html(session).html
    assert marked.count("color:transparent") == 8 - marked.count(f"color:{palette.BAD}") > 0
    assert "color:transparent" not in ranks_html(two).html


@pytest.mark.parametrize("plan", [TWO, EIGHT, MANY], ids=lambda plan: str(plan.world))
def test_a_card_stays_small(plan: Plan) -> None:
    """A card stays small, however many ranks there are."""
    session = shared_overview(plan)
    card = card_bundle(session, session.spans[0], with_chart=False)

    assert len(card["text/html"]) < 50_000
    assert all(len(text) < 320 for text in card["text/plain"].splitlines())


def test_a_run_of_ranks_is_no_block() -> None:
    """The span around all ranks is ours."""
    session = shared_overview(EIGHT)

    assert ">block" not in card_bundle(session, session.spans[0], with_chart=True)["text/html"]


def test_a_card_on_one_line_has_the_worst_and_the_number_of_ranks() -> None:
    """A card on one line leaves out the median, the lowest and the headroom."""
    session = shared_overview(EIGHT)
    text = compact_bundle(session, session.spans[0])["text/plain"]

    assert "8 ranks · worst peak 63.5 GiB exact (rank 5, backward)" in text
    assert "median" not in text


def test_text_of_other_machines_is_escaped() -> None:
    """Names of hosts, devices, phases and flags are escaped on the card, in the line and in the figures."""
    session = overview(replace(EIGHT, world=16, per_node=8, host=HOSTILE + "{}", device=HOSTILE))
    assert session.ranks is not None
    worst = replace(session.ranks.table[0], phase=HOSTILE, host=HOSTILE)
    session.ranks = replace(session.ranks, engine=HOSTILE, table=(worst, *session.ranks.table[1:]))
    session.findings.clear()
    card = card_bundle(session, session.spans[0], with_chart=True)

    assert "<img src=x" not in card["text/html"]
    assert "&lt;img src=x" in card["text/html"]
    assert not {"\u202e", "\n\n"} & set(card["text/plain"])


def test_a_cell_of_the_strip_has_its_place_in_time() -> None:
    """Columns begin when they say so, whatever their lengths; the last goes on to the end."""
    strip = RankStrip((0, 1), (0.0, 30.0), bytes([0, 100, 200, SILENT_CELL]))
    html = strip_html(ranks(row(0, 7), row(1, 4), strip=strip), 120.0).html

    assert inks(html, 0) == ["440154"] * 60 + ["fde725"] * 180
    assert inks(html, 1) == ["21918c"] * 60 + ["b8bec5"] * 180


def test_before_the_first_column_there_is_nothing() -> None:
    """Before the first column the strip is clear."""
    strip = RankStrip((0, 1), (60.0,), bytes([0, 100]))
    html = strip_html(ranks(row(0, 7), row(1, 4), strip=strip), 120.0).html

    assert inks(html, 0) == ["clear"] * 120 + ["440154"] * 120


def test_there_is_no_strip_of_nothing() -> None:
    """Without rows, without columns or without a duration there is no strip."""
    strip = RankStrip((0, 1), (0.0,), bytes(2))

    assert not strip_html(ranks(row(0, 7)), 10.0)
    assert not strip_html(ranks(row(0, 7), strip=RankStrip((0, 1))), 10.0)
    assert not strip_html(ranks(row(0, 7), strip=strip), 0.0)


@pytest.mark.parametrize("plan", [TWO, EIGHT], ids=lambda plan: str(plan.world))
def test_a_few_ranks_have_a_line_each(plan: Plan) -> None:
    """A few ranks have lines of different colours or dashes, and no band."""
    curves = scene_of(shared_overview(plan), columns=240).line_curves

    ranked = sorted(curves, key=lambda curve: curve.rank)
    assert [curve.name for curve in ranked] == [f"rank {at}" for at in range(plan.world)]
    assert not any(curve.fill for curve in curves)
    strokes = [(curve.stroke.colour, curve.stroke.dash) for curve in ranked if curve.stroke]
    assert strokes == list(palette.DEVICES[: plan.world])


def test_many_ranks_have_a_band_from_the_lowest_to_the_highest_with_the_median() -> None:
    """The band goes forwards along the highest and back along the lowest; the highest is on top."""
    scene = scene_of(shared_overview(MANY), columns=240)
    curves, (lowest, _, highest) = scene.line_curves, scene.lines

    assert [curve.name for curve in curves if curve.is_key] == [BAND, "median", "highest rank"]
    assert [curve.tip for curve in curves if curve.tip] == ["lowest rank", "median", "highest rank"]
    assert curves[0].points == [*highest.points, *reversed(lowest.points)]
    assert all(low[1] <= high[1] for low, high in zip(lowest.points, highest.points, strict=False))


def test_a_gap_parts_the_band() -> None:
    """Nothing is drawn where nothing was sampled."""
    session = overview(MANY)
    session.timeline.add_gap(300.2, 340.2)
    assert len(scene_of(session, columns=240).line_curves[0].runs) == 2
    html = chart_html(session)
    filled = html.index(f'fill="{TABLE["lowest"].color}"')
    assert html[html.rindex("<path", 0, filled) : filled].count("z") == 2


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (TWO, "worst: rank 1, 7.41 GiB exact, backward"),
        (MANY, "worst: rank 417, 68.8 GiB exact, backward"),
    ],
    ids=["2", "1024"],
)
def test_the_peak_has_the_name_of_the_worst_rank(plan: Plan, text: str) -> None:
    """Both forms of the chart name the worst rank at the peak."""
    session = shared_overview(plan)

    assert text in chart_html(session)
    assert f"<b>{text}</b>" in [
        note["text"] for note in figure_dict(session)["layout"]["annotations"]
    ]


def test_the_capacity_is_that_of_the_smallest_device() -> None:
    """The capacity is that of the device that stands for all ranks."""
    session = shared_overview(replace(MANY, total=75 * GIB))

    assert scene_of(session, columns=240).capacity == 75 * GIB


def test_ranks_of_their_own_are_not_lines_of_the_chart() -> None:
    """Single ranks have tabs in the live chart; in the still chart they would stand twice."""
    scene = scene_of(shared_overview(EIGHT), columns=240)

    assert scene.devices == ("ranks",)
    assert scene.layers == ()


def test_a_silent_rank_has_no_line_while_it_is_silent() -> None:
    """A silent rank's line ends."""
    scene = scene_of(shared_overview(EIGHT), columns=240)
    silent = next(line.points for line in scene.lines if line.metric == "rank3")

    assert max(time for time, value in silent if not math.isnan(value)) < 0.88 * scene.duration
