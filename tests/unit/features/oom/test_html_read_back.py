"""Why memory ran out, read back: which parts the bar has, what an advice says, what stands at the foot."""

from __future__ import annotations

import pytest

from hfmem_widget.features.oom.advice import MEASURED_ON
from hfmem_widget.features.oom.html import advice_list, bar_html, drawn_parts, figures_of, foot
from hfmem_widget.features.oom.model import Advice
from tests.data.oom_incidents import blocks, incident

PARTS = {"weights": 20.0, "activations": 10.0, "cache": 5.0, "context": 1.0, "others": 4.0}
DO = Advice("Do this", "it is too much")
MEASURED = Advice("Do that", "it was tried", "about half", 1.0, is_measured=True)


@pytest.mark.parametrize(
    ("allowed", "names"),
    [
        (0.0, ["weights", "activations", "cache", "context", "others"]),
        (40.0, ["weights", "activations", "cache"]),
    ],
)
def test_a_limit_is_met_by_what_this_process_has_reserved(allowed: float, names: list[str]) -> None:
    """The cache counts against it, the context and other processes do not; what is free is never drawn."""
    one = incident(asked=9.0, free=40.0, parts=PARTS, others=4.0, allowed=allowed)

    assert [part.name for part in drawn_parts(one)] == names


def test_without_parts_there_is_no_bar() -> None:
    """Nor is there an empty one."""
    assert bar_html(incident(asked=9.0, free=1.0)) == ""
    assert bar_html(incident(asked=9.0, free=1.0, parts=PARTS)) != ""


def test_an_advice_whose_saving_nobody_knows_says_nothing_of_it() -> None:
    """It has what to do and why, and one that was measured has what it saves."""
    html = advice_list((DO, MEASURED)).html
    first, second = html.split("<li ")[1:]

    assert "It is too much.</div></li>" in first
    assert "could save about half</div></li>" in second
    assert not advice_list(())


@pytest.mark.parametrize(
    ("advice", "earlier", "told"),
    [
        ((), 0, []),
        ((DO,), 0, []),
        ((DO,), 1, ["1 earlier out-of-memory error"]),
        ((DO,), 2, ["2 earlier out-of-memory errors"]),
    ],
)
def test_the_foot_tells_of_errors_before(
    advice: tuple[Advice, ...], earlier: int, told: list[str]
) -> None:
    """One is not told as several."""
    assert [one.split(" did not")[0] for one in foot(advice, earlier)] == told


def test_the_foot_says_where_it_was_measured() -> None:
    """Where anything was; after what was caught before."""
    first, second = foot((DO, MEASURED), 1)

    assert "1 earlier" in first
    assert MEASURED_ON in second


@pytest.mark.parametrize(("cache", "named"), [(0.0, False), (4.0, True)])
def test_the_cache_is_a_figure_with_its_largest_block(cache: float, *, named: bool) -> None:
    """Where there is one worth telling."""
    parts = PARTS | {"cache": cache}
    told = figures_of(incident(asked=9.0, free=1.0, parts=parts, blocks=blocks(3.0, 2.0)))
    names = [name for name, _, _ in told]

    assert ("cache" in names) is ("largest free block" in names) is named
    assert named is (("cache", "4.00 GiB", "free, but reserved") in told)
    assert named is (("largest free block", "2.00 GiB", "in the cache") in told)
