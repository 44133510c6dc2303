"""`CUDA_VISIBLE_DEVICES`, read as CUDA reads it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.sources.nvml import is_provisional, visible

GPUS = ("GPU-aaa0", "GPU-aaa1", "GPU-bbb2", "GPU-ccc3")
INSTANCES = ("MIG-one", "MIG-two", "MIG-GPU-aaa0/1/0")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, (0, 1, 2, 3)),
        ("", ()),
        ("NoDevFiles", ()),
        ("-1", ()),
        ("0", (0,)),
        ("1,0", (1, 0)),
        (" 2 , 3 ", (2, 3)),
        ("+2", (2,)),
        ("1gpu2,2x", (1, 2)),
        ("2,2", ()),
        ("0,7,7", ()),
        ("0,-1,1", (0,)),
        ("0,7,1", (0,)),
        ("0,,1", (0,)),
        ("0,GPU-bbb2", (0,)),
        ("99999999999999999999999", ()),
        ("GPU-bbb2", (2,)),
        ("GPU-b", (2,)),
        ("GPU-c,GPU-b", (3, 2)),
        ("GPU-aaa", ()),
        ("GPU-b,GPU-aaa,GPU-c", (2,)),
        ("GPU-b,GPU-none,GPU-c", (2,)),
        ("GPU-b,0", (2,)),
        ("GPU-b, GPU-c", (2,)),
        ("GPU-b,GPU-b", ()),
        ("GPU-b,GPU-bbb", ()),
        ("gpu-bbb2", ()),
    ],
)
def test_it_shows_what_cuda_shows(value: str | None, expected: tuple[int, ...]) -> None:
    """Ordinals as strtoul reads them, unique prefixes, an end at what is invalid, nothing for repeats."""
    assert visible(value, GPUS) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [("MIG-two", (1,)), ("MIG-two,MIG-one", (1,)), ("MIG-GPU-aaa0/1/0", (2,)), ("MIG-none", ())],
)
def test_one_instance_is_shown(value: str, expected: tuple[int, ...]) -> None:
    """A process uses one MIG instance, the first that is named, under its new or its old kind of name."""
    assert visible(value, INSTANCES) == expected


@pytest.mark.parametrize("ordinal", [None, "0,1"])
def test_ordinals_are_certain_only_in_one_order(ordinal: str | None) -> None:
    """Among unlike GPUs, CUDA counts the fastest first unless told otherwise."""
    assert is_provisional(ordinal, None, ("A100", "T4"))
    assert is_provisional(ordinal, "FASTEST_FIRST", ("A100", "T4"))
    assert not is_provisional(ordinal, "PCI_BUS_ID", ("A100", "T4"))
    assert not is_provisional(ordinal, None, ("A100", "A100"))


def test_uuids_are_certain() -> None:
    """A UUID means one GPU, whatever the order."""
    assert not is_provisional("GPU-b", None, ("A100", "T4"))


@given(st.text(alphabet="0123456789+-,GPUMIabc \t٣", max_size=40))
def test_any_text_shows_a_set_of_devices(value: str) -> None:
    """Whatever stands in the variable, the answer is distinct devices that are there."""
    shown = visible(value, GPUS)

    assert len(set(shown)) == len(shown)
    assert set(shown) <= set(range(len(GPUS)))
