"""All ranks on a terminal's screen."""

from __future__ import annotations

import pytest

from hfmem_widget.view.terminal import data, glance, line, screen
from tests.data.overviews import EIGHT, MANY, TWO, Plan, shared_overview


def shown(plan: Plan, width: int = 80, height: int = 24) -> list[str]:
    return screen(
        glance(shared_overview(plan, until=0.95 * plan.seconds, ended=False), {}), width, height
    )


@pytest.mark.parametrize("plan", [TWO, EIGHT, MANY], ids=lambda plan: str(plan.world))
@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 50), (40, 16), (20, 8)])
def test_a_screen_is_never_exceeded(plan: Plan, width: int, height: int) -> None:
    """Whatever its size."""
    lines = shown(plan, width, height)

    assert len(lines) < height
    assert max(map(len, lines)) <= width


def test_the_worst_comes_first_then_the_course_what_was_found_and_the_table() -> None:
    """On a usual screen all of it fits."""
    text = "\n".join(shown(MANY))
    wanted = ("worst peak 68.8 GiB exact", "all ranks", "warning: Rank 417", "417   node0052")

    assert [text.index(each) for each in wanted] == sorted(text.index(each) for each in wanted)


def test_where_rows_are_left_out_those_worth_a_look_stay() -> None:
    """The worst, and who is silent."""
    rows = [text for text in shown(MANY) if "node0" in text and text[:1].isdigit()]

    assert rows[0].startswith("417")
    assert [text.split()[0] for text in rows[1:5]] == ["640", "641", "642", "643"]


def test_columns_go_where_there_is_no_room() -> None:
    """The rank and its peak stay."""
    heads = next(text for text in shown(MANY, 40, 24) if text.startswith("rank "))

    assert heads.split() == ["rank", "peak,", "GiB", "step"]


def test_a_bar_stands_for_each_second() -> None:
    """Dark up to the lowest rank, and lighter up to the highest."""
    lines = shown(EIGHT)
    key = next(at for at, text in enumerate(lines) if "all ranks" in text)
    column = [text.ljust(80)[20] for text in lines[key - 5 : key]]

    assert "newest 79 s" in lines[key]
    assert "".join(column).strip(" ") in {"█" * count for count in range(1, 6)} | {"▒███", "▒██"}


def test_a_log_and_a_program_are_told_of_all_ranks() -> None:
    """In a line, and as data."""
    now = glance(shared_overview(EIGHT), {})

    assert "8 ranks · worst peak 63.5 GiB exact" in line(now)
    told = data(now)["ranks"]
    assert (told["world"], told["reporting"], told["table"][0]["rank"]) == (8, 7, 5)
