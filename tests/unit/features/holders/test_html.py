"""The table of what holds memory."""

from typing import Any

import pytest
import torch

import hfmem_widget
from hfmem_widget.errors import OptionError
from hfmem_widget.features.holders.html import MOST_ROWS, growth_bundle, holders_bundle
from hfmem_widget.sources.heap.model import Grown, Growth, Holder, Holders, Kind, Remainder
from hfmem_widget.text import MIB

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


def test_a_row_has_path_bytes_and_tensors() -> None:
    """Its graphs and other names are below it."""
    device, first, graphs, also, *_ = text(LOSSES)
    assert device == "cuda:0"
    assert first == "40.0 MiB  losses[0..99]  (200 tensors \u00b7 biggest 512\u00d7512 float32)"
    assert graphs.strip() == "39.0 MiB of that is held by the autograd graphs of 100 tensors"
    assert also.strip() == "also _"


def test_the_remainder_has_its_own_row() -> None:
    """On a GPU, memory without a known holder; on the CPU, the rest of the heap."""
    left = (Remainder("cuda:0", 3 * MIB, is_host=False), Remainder("cpu", 7 * MIB, is_host=True))
    lines = text(LOSSES, remainders=left)
    assert "3.00 MiB  not held by any Python object found" in map(str.strip, lines)
    assert "7.00 MiB  everything else in this process" in lines


def test_small_and_surplus_rows_are_summed_up() -> None:
    """Rows beyond the most that are shown, and those below the least, have one line together."""
    many = [Holder(f"x{at}", "tensors", "cpu", 2 * M, 1, (), "float32") for at in range(40)]
    small = Holder("y", "tensors", "cpu", 512, 1, (), "float32")
    assert f"{(40 - MOST_ROWS) * 2}.0 MiB  {41 - MOST_ROWS} smaller names" in text(*many, small)
    assert "<0.01 MiB  1 smaller name" in text(small)


def test_a_device_with_nothing_on_it_has_no_table() -> None:
    """On a machine of eight GPUs, the unused ones are left out."""
    rest = (Remainder("cuda:0", 3 * MIB, is_host=False), Remainder("cuda:1", 0.0, is_host=False))
    html = holders_bundle(Holders((), rest))["text/html"]
    assert "cuda:0" in html
    assert "cuda:1" not in html


@pytest.mark.parametrize(
    ("more", "facts"),
    [
        ({}, "2\u00d73 float32"),
        ({"kind": "weights"}, "weights \u00b7 2\u00d73 float32"),
        ({"tensors": 2}, "2 tensors \u00b7 biggest 2\u00d73 float32"),
        (
            {"kind": "gradients", "tensors": 1200, "shape": ()},
            "gradients \u00b7 1,200 tensors \u00b7 biggest scalar float32",
        ),
    ],
)
def test_a_row_has_the_kind_and_the_biggest_tensor(more: dict[str, Any], facts: str) -> None:
    """A single tensor has its shape; of several, the biggest one's is shown."""
    row: dict[str, Any] = {"kind": "tensors", "tensors": 1, "shape": (2, 3), **more}

    assert text(Holder("x", device="cuda:0", bytes=M, dtype="float32", **row))[1].endswith(
        f" ({facts})"
    )


def test_a_graph_that_holds_all_of_it_has_its_own_sentence() -> None:
    """It has the number of tensors of that graph."""
    row = Holder("x", "tensors", "cuda:0", M, 2, (1,), "float32", M, 1)

    assert text(row)[2].strip() == "all of that is held by the autograd graph of 1 tensor"


@pytest.mark.parametrize(
    ("tensors", "kind", "facts"),
    [
        (0, "tensors", "4.00 MiB in total"),
        (1, "tensors", "1 more tensor · 4.00 MiB in total"),
        (2, "weights", "weights · 2 more tensors · 4.00 MiB in total"),
    ],
)
def test_growth_has_the_number_of_new_tensors(tensors: int, kind: Kind, facts: str) -> None:
    """Names that hold little more are counted in one row."""
    grown = Grown("a.b", kind, "cuda:0", 2 * M, tensors, 4 * M)
    little = Grown("c", "tensors", "cuda:0", M // 2, 1, M)
    lines = growth_bundle(Growth((grown, little), 0, 0.1))["text/plain"].splitlines()

    assert f"+2.00 MiB  a.b  ({facts})" in lines
    assert "+0.50 MiB  1 other name" in lines


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"namespace": "cuda:0"}, r"namespace must map .*, not be str; pass a device as device="),
        ({"namespace": torch.zeros(2)}, r"namespace must map names to objects, .*, not be Tensor$"),
        (
            {"namespace": {}, "allocated": 5},
            r"allocated must map devices to bytes, .*, not be int$",
        ),
    ],
)
def test_an_argument_that_is_not_a_mapping_is_an_error(wrong: dict[str, Any], error: str) -> None:
    """It says what to pass, before anything is searched."""
    with pytest.raises(OptionError, match=error):
        hfmem_widget.holders(**wrong)


def test_variables_may_be_any_mapping() -> None:
    """The name that keeps most comes first."""
    variables = {"less": torch.zeros(2**17), "kept": [torch.zeros(2**18)]}
    holders = hfmem_widget.holders(variables, {"cpu": 2.0**20})

    # Modules of other tests may hold something, too.
    paths = [row.path for row in holders.rows if row.path in {"less", "kept[0]"}]
    assert paths == ["kept[0]", "less"]
