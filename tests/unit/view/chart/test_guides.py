"""Budgets and trends over the still chart."""

import json
import math
from typing import Any

import pytest

from hfmem_widget.session import Finding, Guide, Session, Span
from hfmem_widget.text import GIB
from hfmem_widget.view.card import card_bundle
from hfmem_widget.view.chart.figure import PLOTLY_MIME, chart_bundle
from hfmem_widget.view.chart.guides import guides_in
from hfmem_widget.view.chart.scene import CLEARANCE, LABEL_ROOM, PeakMark, Scene, build_scene
from tests.data.plotly_words import plain_words
from tests.scenes import scripted_run

RAN_OUT = "out of memory: asked 2.00 GiB"


def budget(gib: float, device: str = "cuda:0") -> Guide:
    return Guide(device, "budget", f"budget {gib} GiB", 0.0, math.inf, gib * GIB, gib * GIB)


def trend(start: float = 2.0, stop: float = 10.0) -> Guide:
    return Guide("cuda:0", "trend", "+1 a step", start, stop, GIB, 5 * GIB, (0.5 * GIB, GIB))


def crossing(time: float, device: str = "cuda:0") -> Finding:
    return Finding("budget", "warn", "over it", {"time": time, "device": device})


def oom(time: float, gib: float = 5.0, device: str = "cuda:0", label: str = RAN_OUT) -> Guide:
    return Guide(device, "oom", label, time, time, gib * GIB, gib * GIB)


def run(*guides: Guide, findings: tuple[Finding, ...] = (), name: str = "training") -> Session:
    session = scripted_run(name)
    session.guides += guides
    session.findings += findings
    return session


def scene_of(session: Session, span: Span | None = None, *, columns: int = 160) -> Scene:
    """Return the scene of a session that has one."""
    built = build_scene(session, span, columns=columns)
    assert built is not None
    return built


def peak_of(scene: Scene) -> PeakMark:
    assert scene.peak is not None
    return scene.peak


def scene(session: Session) -> Scene:
    return scene_of(session, session.spans[0])


def chart(session: Session) -> dict[str, Any]:
    bundle = chart_bundle(session, session.spans[0])
    assert bundle is not None
    return bundle | {PLOTLY_MIME: plain_words(bundle[PLOTLY_MIME])}


def lines(session: Session) -> list[dict[str, Any]]:
    named = {"crossed", *(one.label for one in session.guides)}
    return [one for one in chart(session)[PLOTLY_MIME]["data"] if one.get("name") in named]


@pytest.mark.parametrize("gib", [5.0, 6.9, 6.99, 7.0, 7.1, 7.3, 7.6, 8.0, 8.4, 9.0, 11.0])
@pytest.mark.parametrize("name", ["training", "failed"])
def test_the_peaks_label_is_clear_of_every_line(gib: float, name: str) -> None:
    """The label is clear of a budget near the peak, and of the capacity above that."""
    built = scene(run(budget(gib if name == "training" else gib * 20), name=name))
    levels = [one.last for one in built.budgets]
    levels += [] if built.capacity is None else [built.capacity]
    foot, room = peak_of(built).label_at, LABEL_ROOM * built.top
    least = 0.5 * CLEARANCE * built.top
    assert all(not foot - least < level < foot + room - least for level in levels)
    assert all(level < built.top for level in levels)


@pytest.mark.parametrize(
    ("findings", "marks"),
    [
        ((crossing(4.25), crossing(9.0)), [[4.25]]),
        ((crossing(99.0),), []),
        ((crossing(4.0, "cuda:1"),), []),
        ((crossing(math.nan),), []),
    ],
)
def test_the_first_crossing_is_marked(findings: tuple[Finding, ...], marks: list[Any]) -> None:
    """A crossing at another time, on another device or at no known time is not marked."""
    traces = lines(run(budget(6.0), findings=findings))
    assert [one["x"] for one in traces if one["mode"] == "markers"] == marks


def test_only_the_device_that_is_shown_has_guides() -> None:
    """Eight budgets over each other would say nothing."""
    session = run(*(budget(100.0, f"cuda:{at}") for at in range(8)), name="eight gpus")
    assert len(scene(session).budgets) == 1


@pytest.mark.parametrize("with_chart", [True, False])
def test_the_pictures_without_plotly_have_them(*, with_chart: bool) -> None:
    """The chart's SVG has them with the names of budget and mark, the card's small picture without."""
    session = run(budget(6.0), trend(), oom(4.0), oom(5.0), findings=(crossing(4.0),))
    html = (
        chart(session)["text/html"]
        if with_chart
        else card_bundle(session, session.spans[0], with_chart=False)["text/html"]
    )
    assert html.count('stroke-dasharray="6 4"') == 1
    assert 'fill-opacity=".2"' in html
    assert ("budget 6.0 GiB</text>" in html) is with_chart
    assert ", budget 6.0 GiB, +1 a step" in html
    assert "<g><title>+1 a step</title><path" in html
    assert html.count(f"<g><title>{RAN_OUT}, with 5.00 GiB allocated, at ") == 2
    assert html.count(f"{RAN_OUT}</text>") == with_chart


def test_a_chart_with_guides_stays_small() -> None:
    """Eighty guides on the longest run leave the chart below 60 kB."""
    session = run(*[budget(6.0), trend()] * 40, name="100,000 steps")
    assert len(json.dumps(chart(session))) < 60_000


def test_of_several_shortages_only_the_newest_has_a_word() -> None:
    """All shortages are marked, as of a search for a batch size, and the newest has a word."""
    times = (3.0, 1.0, 2.0)
    session = run(*(oom(time, label=f"out of memory: asked {time} GiB") for time in times))
    figure = chart(session)[PLOTLY_MIME]
    (mark,) = [one for one in figure["data"] if one.get("name") == "out of memory"]
    assert mark["x"] == [1.0, 2.0, 3.0]
    words = [one["text"] for one in figure["layout"]["annotations"] if "out of" in one["text"]]
    assert words == ["out of memory: asked 3.0 GiB"]


def test_only_the_newest_of_very_many_shortages_are_marked() -> None:
    """Of a hundred shortages the last eight are marked, which take no room from the budget."""
    built = scene(run(*(oom(0.1 * at) for at in range(100)), budget(6.0)))
    assert [one.stop for one in built.ooms] == [0.1 * at for at in range(92, 100)]
    assert len(built.budgets) == 1


def test_a_shortage_of_another_device_is_marked_on_its_line_and_says_which_it_is() -> None:
    """A mark on a further device names it; a device without a line has none."""
    built = scene(run(oom(3.0, device="cuda:1"), oom(3.0, device="cuda:9"), name="two gpus"))
    assert [one.label for one in built.ooms] == [f"cuda:1 {RAN_OUT}"]


def test_a_shortage_above_all_samples_is_within_the_picture() -> None:
    """The allocator reported as it ran out what a sampled peak missed."""
    built = scene(run(oom(3.0, gib=20.0)))
    assert 20 * GIB < peak_of(built).label_at < built.top


@pytest.mark.parametrize(("time", "side"), [(1.0, "left"), (6.0, "center"), (11.0, "right")])
def test_the_word_of_a_mark_stays_in_the_picture(time: float, side: str) -> None:
    """The word turns inwards near a side, and upwards near the bottom."""
    (word,) = [
        one
        for one in chart(run(oom(time, gib=0.5)))[PLOTLY_MIME]["layout"]["annotations"]
        if one["text"] == RAN_OUT
    ]
    assert (word["xanchor"], word["yanchor"]) == (side, "bottom")


@pytest.mark.parametrize(
    ("time", "at"), [(1.9, None), (2.0, 0.0), (5.0, 3.0), (9.0, 7.0), (9.1, None), (math.nan, None)]
)
def test_a_crossing_is_marked_within_what_is_drawn(time: float, at: float | None) -> None:
    """A crossing at an edge of the drawing is marked; times count from where the drawing begins."""
    session = run(budget(8.0), findings=(crossing(time),))
    (guide,) = guides_in(session, "cuda:0", (2.0, 9.0), 5 * GIB)

    assert guide.crossed_at == at
    assert (guide.start, guide.stop, guide.first, guide.last) == (0.0, 7.0, 8 * GIB, 8 * GIB)
