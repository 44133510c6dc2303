"""What holds memory, read back: what is said of each name, and how many are told one by one."""

from __future__ import annotations

from typing import Any

import pytest

from hfmem_widget.features.holders.html import MOST_ROWS, graph_note, holder_facts, shown_rows
from hfmem_widget.session import Session
from hfmem_widget.sources.heap.model import Holder, Kind
from hfmem_widget.text import MIB
from hfmem_widget.view import palette
from hfmem_widget.view.chart.scene import build_scene
from hfmem_widget.view.chart.svg import _legend
from tests.data.parted import training
from tests.data.svg import Drawing, Path
from tests.scenes import scripted_run


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
