"""Tables read back: which columns stand at the right, what is bold, what is quiet, and how much is named."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

import pytest

from hfmem_widget.features.compare.html import table_bundle
from hfmem_widget.features.compare.text import _part
from hfmem_widget.features.holders.html import growth_facts, shown_rows
from hfmem_widget.features.memory_map.model import MemoryMap
from hfmem_widget.features.memory_map.sentences import sentences
from hfmem_widget.features.stacks.html import icicle_html
from hfmem_widget.session.stacks import LivePeak, Site
from hfmem_widget.sources.heap.model import Grown, Kind
from hfmem_widget.text import GIB, MIB
from hfmem_widget.view.anatomy import _scale, anatomy_bundle, bars_html
from hfmem_widget.view.table import Column, TableRow, table
from tests.data.parted import NAN
from tests.unit.features.compare.test_html import two
from tests.unit.features.memory_map.test_html_read_back import segment
from tests.unit.view.test_anatomy import WHOLE, made


class Cell(NamedTuple):
    """One cell of a table."""

    text: str
    style: str

    @property
    def side(self) -> str:
        return str(re.findall(r"text-align:(\w+)", self.style)[-1])

    @property
    def is_bold(self) -> bool:
        return "font-weight:600" in self.style

    @property
    def is_quiet(self) -> bool:
        return "opacity" in self.style


def rows(html: str) -> list[list[Cell]]:
    """Return the rows of the first table, its heads among them."""
    table = html.partition("<table")[2].partition("</table>")[0]
    return [
        [
            Cell(" ".join(re.sub(r"<[^>]*>|\u25a0", " ", text).split()), style)
            for style, text in re.findall(r'<t[hd][^>]*?style="([^"]*)"[^>]*>(.*?)</t[hd]>', row)
        ]
        for row in re.findall(r"<tr[^>]*>(.*?)</tr>", table)
    ]


@pytest.mark.parametrize(
    "html",
    [
        pytest.param(table_bundle(two())["text/html"], id="comparison"),
        pytest.param(anatomy_bundle([WHOLE], {"cuda:0": {}})["text/html"], id="anatomy"),
    ],
)
def test_names_stand_at_the_left_and_figures_at_the_right(html: str) -> None:
    """Heads as what is below them; every row has a cell for every head."""
    head, *below = rows(html)

    assert len(below) >= 2
    assert [one.side for one in head] == ["left", *["right"] * (len(head) - 1)]
    assert all([one.side for one in row] == [one.side for one in head] for row in below)


def test_the_sums_of_an_anatomy_are_bold_below_a_rule() -> None:
    """Allocated, reserved and the process; the parts above them are not."""
    _, *below = rows(anatomy_bundle([WHOLE])["text/html"])
    bold = [row[0].text for row in below if all(one.is_bold for one in row)]
    ruled = [row[0].text for row in below if all("border-top" in one.style for one in row)]

    assert bold == ["allocated", "reserved", "this process"]
    assert ruled == ["allocated"]
    assert not any(one.is_bold or "border-top" in one.style for row in below[:-3] for one in row)


def test_shares_are_quieter_than_the_bytes_they_are_shares_of() -> None:
    """In an anatomy's table."""
    _, *below = rows(anatomy_bundle([WHOLE])["text/html"])

    assert {(size.is_quiet, share.is_quiet) for _, size, share in below} == {(False, True)}


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
    ("pools", "free", "said"),
    [
        (1, 0, "300.0 MiB is reserved in a private pool (CUDA graph or torch.cuda.MemPool)."),
        (2, 0, "600.0 MiB is reserved in 2 private pools (CUDA graph or torch.cuda.MemPool)."),
        (1, 1, "torch.cuda.MemPool); 1.00 MiB of that is free, for its owner only."),
    ],
)
def test_private_pools_are_counted_with_what_is_free_in_them(
    pools: int, free: int, said: str
) -> None:
    """From a MiB on."""
    made = [
        segment(("used", 300), *([("free", free)] if free else []), at=at, pool=(0, at))
        for at in range(1, pools + 1)
    ]
    found = MemoryMap(("cuda:0",), (segment(("used", 100)), *made), 0.01).fragmentation("cuda:0")

    assert [one for one in sentences(found) if one.endswith(said)] != []


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


def test_the_boxes_of_what_was_live_are_three_rows_high() -> None:
    """Lines, modules and operators, with a seam of a pixel below each."""
    peak = LivePeak("cuda:0", 100, 100, (Site("a", "m", "o", "forward", 100, 1, ""),))
    html = icicle_html(peak)
    (whole,) = re.findall(r"line-height:21px;height:(\d+)px", html)

    assert int(whole) == 66
    assert len(re.findall(r'title="[^"]*" style="height:21px;margin:0 1px 1px 0', html)) == 3


@pytest.mark.parametrize(("size", "own"), [(5, False), (6, True), (7, True)])
def test_boxes_too_narrow_to_see_are_one(size: int, *, own: bool) -> None:
    """Below six thousandths of the width they stand together, told as smaller."""
    sites = tuple(
        Site(name, "m", "o", "forward", share, 1, "")
        for name, share in (("big", 1000 - 2 * size), ("b", size), ("c", size))
    )
    titles = re.findall(r'title="([^"]*)"', icicle_html(LivePeak("cuda:0", 1000, 1000, sites)))

    assert ([one for one in titles if one.startswith(("b:", "c:"))] != []) is own
    assert any(one.startswith("smaller") for one in titles) is not own


@pytest.mark.parametrize(
    ("total", "told"),
    [
        (100 * GIB, "full width: 7.00 GiB of 100.0 GiB"),
        (0.0, "full width: 7.00 GiB"),
        (NAN, "full width: 7.00 GiB"),
    ],
)
def test_a_bars_width_is_told_with_the_size_of_its_device(total: float, told: str) -> None:
    """As far as that is known."""
    assert re.sub(r"<[^>]*>", "", _scale(7 * GIB, total)) == told


def test_a_bar_of_nothing_is_none() -> None:
    """Where no part is known."""
    assert bars_html([made()]) == ""


def test_words_beside_figures_keep_a_width_where_there_is_little_room() -> None:
    """They break in a few lines, not in one for each word."""
    columns = [Column("phase"), Column("peak"), Column(is_words=True)]
    drawn = table(columns, [TableRow(("step", "7.00 GiB", "worst: step 15 (5,056 tokens)"))]).html
    widths = [int(width) for width in re.findall(r"min-width:(\d+)px", drawn)]
    assert len(widths) == 2
    assert widths[1] > 100
