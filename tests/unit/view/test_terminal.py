"""A session, or all ranks of a run, as a screen, a line and data for a terminal."""

import json
import math
import unicodedata
from dataclasses import replace
from typing import Any

import pytest

from hfmem_widget.session import Device, Finding, Session, Span
from hfmem_widget.session.model import Sample
from hfmem_widget.session.spans import Spans
from hfmem_widget.text import GIB
from hfmem_widget.view.terminal import RED, DeviceNow, Glance, data, glance, line, screen
from tests.data.overviews import EIGHT, MANY, TWO, Plan, shared_overview
from tests.scenes import scripted_run, shared_run

NAN = math.nan


def device(number: int, allocated: float = 10.0, total: float = 80.0) -> DeviceNow:
    """Return a device of some GiB."""
    about = Device(f"cuda:{number}", "NVIDIA H100", total=total * GIB)
    labels = ("allocated", "reserved")
    figures = (
        allocated * GIB,
        1.1 * allocated * GIB,
        1.2 * allocated * GIB,
        1.05 * allocated * GIB,
    )
    return DeviceNow(about, labels, *figures)


def at_work(count: int = 1, **changes: Any) -> Glance:
    devices = tuple(device(number, 5.0 + number) for number in range(count))
    now = Glance("fine-tune", "running", 61.0, ("train", "epoch 2"), 40, 40, devices, None)
    return replace(now, **changes)


def columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


@pytest.mark.parametrize("run", ["training", "eight gpus", "idle gpu", "leak", TWO, EIGHT, MANY])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 50), (40, 16), (20, 8), (200, 60)])
def test_a_screen_fits_the_terminal(run: str | Plan, width: int, height: int) -> None:
    """No line is wider than the terminal, and the last row stays free for the cursor."""
    if isinstance(run, Plan):
        lines = of_ranks(run, width, height)
    else:
        lines = screen(glance(shared_run(run)), width, height)

    assert max(map(columns, lines)) <= width
    assert len(lines) < height


def test_eight_devices_have_a_row_each() -> None:
    """Eight devices and a finding of three lines fit on 24 rows of 80 columns."""
    lines = screen(at_work(8, finding=Finding("leak", "warn", "word " * 60)))

    assert [row.split()[0] for row in lines[4:12]] == [f"cuda:{number}" for number in range(8)]
    assert len(lines) < 24


def test_of_many_devices_the_fullest_are_shown() -> None:
    """The fullest devices have rows, and the others are added up in one line."""
    lines = screen(at_work(20), height=14)

    assert [row.split()[0] for row in lines[4:8]] == ["cuda:19", "cuda:18", "cuda:17", "cuda:16"]
    assert lines[8].startswith("16 more devices: 200.0 GiB allocated together, at most 30 % of one")


def test_a_row_has_the_figures_and_a_bar() -> None:
    """A bar has what is allocated, reserved, in use besides and free; all figures have one unit."""
    row = screen(at_work(devices=(device(0, 50.0),)))[4]

    assert row.split()[0] == "cuda:0"
    assert row.split()[2:] == ["50.0", "55.0", "52.5", "60.0", "80.0"]
    assert [row.count(cell) > 0 for cell in "\u2588\u2593\u2592\u2591"] == [True, True, True, True]


def test_an_unknown_figure_is_not_available() -> None:
    """It is no zero, and a device of unknown size has an empty bar."""
    unknown = replace(device(0), device=Device("cuda:0", "x"), reserved=NAN)
    row = screen(at_work(devices=(unknown,)))[4]

    assert row.split()[2:] == ["10.0", "n/a", "10.5", "12.0", "n/a"]
    assert "\u2588" not in row


def test_a_device_that_is_nearly_full_is_red() -> None:
    """A device that is nearly full is red, unless colour is not wanted."""
    now = at_work(devices=(device(0, 70.0), device(1, 5.0)))

    assert [row.startswith(RED) for row in screen(now, in_colour=True)[4:6]] == [True, False]
    assert not any("\x1b" in row for row in screen(now))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "train \u203a epoch 2 · step 40"),
        ({"step": 140}, "train \u203a epoch 2 · step 140 (40 steps so far)"),
        ({"phase": ()}, "step 40"),
        ({"steps": 0}, "train \u203a epoch 2"),
    ],
)
def test_phase_and_step_are_named(changes: dict[str, Any], expected: str) -> None:
    """A row has the open spans, the newest step, and the count of steps if that is another number."""
    assert screen(at_work(**changes))[1] == expected


def test_open_spans_are_the_phase() -> None:
    """The phase is made of the open spans, without the run itself and its steps."""
    before = Sample(0.0, ())
    kinds = (("cell", "run"), ("train", "train"), ("epoch", "epoch 1"), ("step", "step 3"))
    spans = Spans(Span(at, kind, label, 0.0, before) for at, (kind, label) in enumerate(kinds))  # type: ignore[arg-type]

    assert glance(Session("run", spans=spans)).phase == ("train", "epoch 1")


def test_a_session_without_anything_is_shown() -> None:
    """Before the first reading there is a screen, a line, and data."""
    now = glance(Session())

    assert "No memory was read yet." in screen(now)
    assert line(now) == "0.0 ms"
    assert json.loads(json.dumps(data(now), allow_nan=False))["devices"] == []


def test_the_newest_finding_is_shown() -> None:
    """The newest finding is a sentence with the word for its severity."""
    session = scripted_run("leak")

    assert screen(glance(session))[-2].startswith("warning: Allocated memory grows by")


def test_a_line_names_the_fullest_devices() -> None:
    """A line names the three fullest devices, and how many more there are."""
    text = line(at_work(5))

    assert text.startswith(
        "1 min 01 s · train \u203a epoch 2 · step 40 · cuda:4 9.00 GiB (peak 9.45 GiB)"
    )
    assert text.endswith(" · 2 more")


def test_wide_letters_count_twice() -> None:
    """A label in Chinese does not push the screen out of place."""
    assert columns(screen(at_work(label="\u8bad" * 60))[0]) <= 80


def of_ranks(plan: Plan, width: int = 80, height: int = 24) -> list[str]:
    return screen(
        glance(shared_overview(plan, until=0.95 * plan.seconds, ended=False)), width, height
    )


def test_the_worst_comes_first_then_the_course_what_was_found_and_the_table() -> None:
    """On a usual screen the worst rank, the course, the finding and the table fit, in this order."""
    text = "\n".join(of_ranks(MANY))
    expected = ("worst peak 68.8 GiB exact", "all ranks", "warning: Rank 417", "417   node0052")

    assert [text.index(each) for each in expected] == sorted(text.index(each) for each in expected)


def test_where_rows_are_left_out_those_worth_a_look_stay() -> None:
    """The rows that stay are those of the worst rank and of the silent ones."""
    rows = [text for text in of_ranks(MANY) if "node0" in text and text[:1].isdigit()]

    assert rows[0].startswith("417")
    assert [text.split()[0] for text in rows[1:5]] == ["640", "641", "642", "643"]


def test_columns_go_where_there_is_no_room() -> None:
    """The rank and its peak stay."""
    heads = next(text for text in of_ranks(MANY, 40, 24) if text.startswith("rank "))

    assert heads.split() == ["rank", "peak,", "GiB", "step"]


def test_a_bar_stands_for_each_second() -> None:
    """Each bar is dark up to the lowest rank, and lighter up to the highest."""
    lines = of_ranks(EIGHT)
    key = next(at for at, text in enumerate(lines) if "all ranks" in text)
    column = [text.ljust(80)[20] for text in lines[key - 5 : key]]

    assert "newest 79 s" in lines[key]
    assert "".join(column).strip(" ") in {"█" * count for count in range(1, 6)} | {"▒███", "▒██"}


def test_the_line_and_the_data_have_all_ranks() -> None:
    """All ranks are in the line and in the data."""
    now = glance(shared_overview(EIGHT))

    assert "8 ranks · worst peak 63.5 GiB exact" in line(now)
    ranks = data(now)["ranks"]
    assert (ranks["world"], ranks["reporting"], ranks["table"][0]["rank"]) == (8, 7, 5)
