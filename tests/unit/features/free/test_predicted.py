"""Memory that `free()` predicts: everything that goes with a name, whatever has it, and nothing else."""

import io
import mmap
import sys
from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import hfmem_widget
from hfmem_widget.features.free.html import release_bundle

pa: Any = pytest.importorskip("pyarrow")
pl: Any = pytest.importorskip("polars")

SIZE = 16 * 2**20
COUNT = SIZE // 8
FEW = 20_000


class Slotted:
    """An object without a dict."""

    __slots__ = ("number",)

    def __init__(self, number: float) -> None:
        self.number = number


@dataclass
class Named:
    """An object with a dict."""

    held: object


def shared() -> Any:
    """Return an array in shared memory, with what keeps that open."""
    memory = SharedMemory(create=True, size=SIZE)
    memory.unlink()
    return memory, np.ndarray((SIZE,), np.uint8, memory.buf)


def linked(count: int) -> Any:
    """Return dicts in a chain, each with the one before."""
    last: Any = None
    for number in range(count):
        last = {"before": last, "number": float(number)}
    return last


def returning(held: object) -> Callable[[], object]:
    """Return a function whose closure holds an object."""
    return lambda: held


def texts() -> Any:
    return [f"{number:>0100}" for number in range(FEW)]


_DICT = sys.getsizeof({"before": 1, "number": 2}) + 8
"""Bytes of a dict of two, rounded up to 16."""

KINDS: dict[str, tuple[Callable[[], Any], float]] = {
    "a tensor": (lambda: torch.ones(SIZE // 4), SIZE),
    "a shared tensor": (lambda: torch.ones(SIZE // 4).share_memory_(), SIZE),
    "NumPy": (lambda: np.ones(COUNT), SIZE),
    "NumPy, in a dict of lists": (
        lambda: {"a": [np.ones(COUNT // 2)] * 3 + [np.ones(COUNT // 2)]},
        SIZE,
    ),
    "NumPy, of objects": (lambda: np.array(texts(), object), FEW * (160 + 8)),
    "pandas": (lambda: pd.DataFrame({"a": np.ones(COUNT // 2), "b": np.ones(COUNT // 2)}), SIZE),
    "pandas, of texts": (lambda: pd.DataFrame({"a": pd.array(texts(), "str")}), FEW * (100 + 8)),
    "pandas, of objects": (lambda: pd.Series(texts(), dtype=object), FEW * (160 + 8)),
    "Arrow": (lambda: pa.table({"a": np.ones(COUNT)}), SIZE),
    "Arrow, in slices": (lambda: [part.slice(9) for part in [pa.array(np.ones(COUNT))] * 2], SIZE),
    "bytes": (lambda: b"1" * SIZE, SIZE),
    "bytes in a list": (lambda: [b"1" * (SIZE // 8 + n) for n in range(8)], SIZE),
    "a bytearray": (lambda: bytearray(SIZE), SIZE),
    "an array of a bytearray": (lambda: np.frombuffer(bytearray(SIZE), np.uint8)[9:], SIZE),
    "a text": (lambda: "1" * SIZE, SIZE),
    "texts": (texts, FEW * (160 + 8)),
    "lists of numbers": (
        lambda: [list(map(float, range(100))) for _ in range(1000)],
        1000 * (sys.getsizeof(list(map(float, range(100)))) + 100 * 32 + 8),
    ),
    "one number many times": (lambda: [1e9] * COUNT, SIZE),
    "dicts": (
        lambda: [{"before": float(n), "number": n / 3} for n in range(FEW)],
        FEW * (_DICT + 64 + 8),
    ),
    "dicts in one another": (lambda: linked(FEW), FEW * (_DICT + 32)),
    "tuples": (lambda: [(float(n), n / 3) for n in range(FEW)], FEW * (8 + 64 + 64)),
    "slots": (lambda: [Slotted(float(n)) for n in range(FEW)], FEW * (8 + 48 + 32)),
    "objects": (lambda: Named([Named(b"1" * (SIZE // 2)), Named(np.ones(COUNT // 2))]), SIZE),
    "an odd dict": (lambda: OrderedDict(a=defaultdict(list, b=[b"1" * SIZE])), SIZE),
    "a function's variable": (lambda: returning(b"1" * SIZE), SIZE),
    "an array of Python's": (lambda: array("d", [1.0]) * COUNT, SIZE),
    "a file in memory": (lambda: io.BytesIO(b"1" * SIZE), SIZE),
    "shared memory": (shared, SIZE),
    "a mapping of its own": (lambda: mmap.mmap(-1, SIZE), SIZE),
}


@pytest.mark.parametrize("kind", KINDS)
def test_all_memory_of_a_name_is_predicted(main: dict[str, Any], kind: str) -> None:
    """The figure is within three percent, and is not an upper bound."""
    make, size = KINDS[kind]
    main["thing"] = make()
    (item,) = hfmem_widget.free("thing", dry_run=True).items

    assert item.total == pytest.approx(size, rel=0.03)
    assert not item.is_at_most


@pytest.mark.parametrize("kind", KINDS)
def test_memory_that_another_name_has_too_is_not_predicted(main: dict[str, Any], kind: str) -> None:
    """Deleting one of two names frees nothing."""
    main["thing"] = [KINDS[kind][0]()]
    main["other"] = {"a": main["thing"][0]}
    (item,) = hfmem_widget.free("thing", dry_run=True).items

    assert item.total == 0


def test_memory_with_several_owners_is_predicted_once(main: dict[str, Any]) -> None:
    """An array, a tensor and a buffer of Arrow may have the same bytes."""
    held = b"1" * SIZE
    of_numpy = np.frombuffer(held, np.uint8)
    main["thing"] = [held, of_numpy, torch.from_numpy(of_numpy.copy()), pa.array(of_numpy)]
    del held, of_numpy

    assert hfmem_widget.free("thing", dry_run=True).together["cpu"] == pytest.approx(
        2 * SIZE, rel=0.01
    )


def test_a_part_that_stays_keeps_all_of_it(main: dict[str, Any]) -> None:
    """An array that was made of bytes keeps them, as a slice of Arrow's keeps its buffer."""
    main["thing"] = [b"1" * SIZE, pa.array(np.ones(COUNT))]
    main["part"] = [np.frombuffer(main["thing"][0], np.uint8)[:9], main["thing"][1].slice(5, 9)]

    assert hfmem_widget.free("thing", dry_run=True).together == {}


def test_memory_that_may_be_shared_is_an_upper_bound(main: dict[str, Any]) -> None:
    """A frame of polars has a size, but does not say which columns another frame has too."""
    main["frame"] = pl.select(pl.int_range(0, COUNT, dtype=pl.Int64).alias("n") * 2)
    release = hfmem_widget.free("frame", dry_run=True)

    assert release.together["cpu"] == pytest.approx(SIZE, rel=0.01)
    assert release.is_at_most
    assert "up to 16.0 MiB" in release_bundle(release)["text/plain"]


def test_memory_smaller_than_a_page_is_left_out(main: dict[str, Any]) -> None:
    """Most outputs are smaller."""
    main["thing"] = ["a few", "words"]

    text = release_bundle(hfmem_widget.free("thing", dry_run=True))["text/plain"]
    assert "nothing held only here" in text
