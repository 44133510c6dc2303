"""The table of what holds memory."""

from __future__ import annotations

from typing import Any

import pytest

from hfmem_widget.features.holders.html import (
    MOST_ROWS,
    graph_note,
    growth_facts,
    holder_facts,
    holders_bundle,
    shown_rows,
)
from hfmem_widget.session import Session
from hfmem_widget.sources.heap.model import Grown, Holder, Holders, Kind, Remainder
from hfmem_widget.text import MIB
from hfmem_widget.view import palette
from hfmem_widget.view.chart.scene import build_scene
from hfmem_widget.view.chart.svg import _legend
from tests.data.parted import training
from tests.data.svg import Drawing, Path
from tests.scenes import scripted_run
from tests.unit.view.test_hostile_text import CORPUS, Strict

M = int(MIB)
LOSSES = Holder(
    "losses[0..99]", "tensors", "cuda:0", 40 * M, 200, (512, 512), "float32", 39 * M, 100, ("_",)
)
MODEL = Holder(
    "model", "weights", "cuda:0", 20 * M, 9, (64,), "bfloat16", parts=((".layers[0]", 12 * M),)
)


def text(*rows: Holder, remainders: tuple[Remainder, ...] = (), **options: bool) -> list[str]:
    bundle = holders_bundle(Holders(rows, remainders, 0.25, 1234), **options)
    return bundle["text/plain"].splitlines()


def test_a_row_tells_the_path_what_it_keeps_its_graphs_and_other_names() -> None:
    """A holder has its bytes, path and tensors in a row, and its graphs and other names below."""
    device, first, graphs, also, *_ = text(LOSSES)
    assert device == "cuda:0"
    assert first == "40.0 MiB  losses[0..99]  (200 tensors \u00b7 biggest 512\u00d7512 float32)"
    assert graphs.strip() == "39.0 MiB of that is held by the autograd graphs of 100 tensors"
    assert also.strip() == "also _"


def test_parts_are_told_in_detail_only() -> None:
    """The parts of a model are listed only where details are asked for."""
    assert not any(".layers[0]" in line for line in text(MODEL))
    assert any("12.0 MiB  .layers[0]" in line for line in text(MODEL, detail=True))


def test_the_remainder_is_said_as_what_it_is() -> None:
    """On a GPU, what nobody explains; on the CPU, the rest of the heap."""
    left = (Remainder("cuda:0", 3 * MIB, is_host=False), Remainder("cpu", 7 * MIB, is_host=True))
    lines = text(LOSSES, remainders=left)
    assert "3.00 MiB  not held by any Python object found" in map(str.strip, lines)
    assert "7.00 MiB  everything else in this process" in lines


def test_small_rows_and_very_many_are_told_as_one() -> None:
    """Rows beyond the most that are shown, and those below the least, are summed in one line."""
    many = [Holder(f"x{at}", "tensors", "cpu", 2 * M, 1, (), "float32") for at in range(40)]
    small = Holder("y", "tensors", "cpu", 512, 1, (), "float32")
    assert f"{(40 - MOST_ROWS) * 2}.0 MiB  {41 - MOST_ROWS} smaller names" in text(*many, small)
    assert "<0.01 MiB  1 smaller name" in text(small)


def test_its_own_cost_is_the_last_line() -> None:
    """The table ends with how many objects were looked at, and how long that took."""
    assert text(LOSSES)[-1] == "Inspected 1,234 objects in 250 ms"


def test_names_are_text() -> None:
    """Whatever a key of the user's says, no tag of it gets into the table."""
    for hostile in CORPUS.values():
        row = Holder(
            f"cache[{hostile}]", "tensors", hostile, 3 * M, 2, (1,), hostile, 0, 0, (hostile,),
            ((hostile, 5),),
        )  # fmt: skip
        html = holders_bundle(Holders((row,)), detail=True)["text/html"]
        seen = Strict(html)
        assert seen.tags == {
            *("div", "strong", "table", "thead", "tbody", "tr", "th", "td", "code"),
        }
        assert seen.attributes == {"class", "style", "scope"}
        assert "\u202e" not in html


@pytest.mark.parametrize(
    ("kind", "tensors", "told"),
    [
        ("tensors", 1, "(512"),
        ("tensors", 2, "(2 tensors \u00b7"),
        ("weights", 1, "(weights \u00b7"),
        ("weights", 2, "(weights \u00b7 2 tensors"),
    ],
)
def test_how_many_tensors_are_told_where_there_are_several(
    kind: str, tensors: int, told: str
) -> None:
    """Of one alone its shape says enough."""
    row = Holder("x", kind, "cuda:0", M, tensors, (512, 512), "float32")  # type: ignore[arg-type]  # either

    assert told in text(row)[1]


def test_a_device_with_nothing_on_it_has_no_table() -> None:
    """On a machine of eight GPUs, the seven that are not used say nothing."""
    rest = (Remainder("cuda:0", 3 * MIB, is_host=False), Remainder("cuda:1", 0.0, is_host=False))
    told = holders_bundle(Holders((), rest))["text/html"]
    assert "cuda:0" in told
    assert "cuda:1" not in told


def holder(size: float = 4.0, *, tensors: int = 2, kind: Kind = "tensors", **more: Any) -> Holder:
    given = {"shape": (2, 3), "dtype": "float32"} | more
    return Holder("a.b", kind, "cuda:0", int(size * MIB), tensors, **given)


@pytest.mark.parametrize(
    ("tensors", "kind", "shape", "facts"),
    [
        (1, "tensors", (2, 3), "2\u00d73 float32"),
        (1, "weights", (2, 3), "weights \u00b7 2\u00d73 float32"),
        (2, "tensors", (2, 3), "2 tensors \u00b7 biggest 2\u00d73 float32"),
        (1200, "gradients", (), "gradients \u00b7 1,200 tensors \u00b7 biggest scalar float32"),
        (1, "tensors", (), "scalar float32"),
    ],
)
def test_what_is_held_is_said_in_few_words(
    tensors: int, kind: Kind, shape: tuple[int, ...], facts: str
) -> None:
    """Of one tensor its shape says enough; it is only the biggest if there are others."""
    assert holder_facts(holder(tensors=tensors, kind=kind, shape=shape)) == facts


@pytest.mark.parametrize(
    ("graph", "graphs", "told"),
    [
        (0.0, 0, ""),
        (1.0, 1, "1.00 MiB of that is held by the autograd graph of 1 tensor"),
        (4.0, 1, "all of that is held by the autograd graph of 1 tensor"),
        (4.0, 2, "all of that is held by the autograd graphs of 2 tensors"),
    ],
)
def test_what_graphs_keep_is_said_with_whose_they_are(graph: float, graphs: int, told: str) -> None:
    """And how much of it all that is."""
    assert graph_note(holder(graph_bytes=int(graph * MIB), graphs=graphs)) == told


@pytest.mark.parametrize(
    ("sizes", "shown", "others"),
    [
        ([3.0, 1.0], 2, 0),
        ([3.0, 0.9], 1, 1),
        ([3.0, 0.9, 0.8], 1, 2),
        ([2.0] * MOST_ROWS, MOST_ROWS, 0),
        ([2.0] * (MOST_ROWS + 1), MOST_ROWS, 1),
    ],
)
def test_small_names_are_counted(sizes: list[float], shown: int, others: int) -> None:
    """Those below a MiB, and those beyond twenty-five."""
    found, rest = shown_rows([holder(one) for one in sizes], MIB)

    assert (MOST_ROWS, len(found), len(rest)) == (25, shown, others)


@pytest.mark.parametrize("make", [training, lambda: scripted_run("eight gpus")])
def test_a_key_in_the_legend_is_as_thick_as_it_must_be_to_be_seen(make: Any) -> None:
    """A pixel for what is drawn thin, more for the lines of other devices."""
    session: Session = make()
    scene = build_scene(session, session.spans[0], columns=160)
    assert scene is not None
    found = dict(Drawing(f"<p><svg/>{_legend(scene)}</p>").legend())
    widths = {
        (line.device == scene.device.key, line.metric): key.width
        for line in scene.lines
        if isinstance(key := found[scene.name(line)], Path)
    }
    wanted = {(True, "reserved"): 1.0, (True, "allocated"): 1.0, (False, "allocated"): 1.6}

    assert widths != {}
    assert widths == {key: wanted[key] for key in widths}
    assert scene.layers == () or palette.PARTS["weights"] in _legend(scene)


def grown(size: float, *, tensors: int = 1, kind: Kind = "tensors") -> Grown:
    return Grown("a.b", kind, "cuda:0", int(size), tensors, int(2 * size))


@pytest.mark.parametrize(
    ("sizes", "shown", "others"),
    [
        ([5.0, 3.0], 2, 0),
        ([5.0, 3.0, 0.5], 2, 1),
        ([5.0, 3.0, 0.5, 0.4], 2, 2),
        ([5.0, 1.0], 2, 0),
    ],
)
def test_names_that_hold_little_more_are_counted(
    sizes: list[float], shown: int, others: int
) -> None:
    """Those that hold enough have a row each."""
    found, rest = shown_rows([grown(one * MIB) for one in sizes], MIB)

    assert (len(found), len(rest)) == (shown, others)


@pytest.mark.parametrize(
    ("tensors", "kind", "told"),
    [
        (0, "tensors", "2.00 MiB in total"),
        (1, "tensors", "1 more tensor · 2.00 MiB in total"),
        (2, "tensors", "2 more tensors · 2.00 MiB in total"),
        (1, "weights", "weights · 1 more tensor · 2.00 MiB in total"),
    ],
)
def test_what_holds_more_says_of_how_many_tensors(tensors: int, kind: Kind, told: str) -> None:
    """And what it is, where it is more than tensors."""
    assert growth_facts(grown(MIB, tensors=tensors, kind=kind)) == told
