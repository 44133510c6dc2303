"""Arrays of any library, and Python's own objects: their bytes, once, by the name that holds them."""

from __future__ import annotations

import array
import dataclasses
import functools
import gc
import io
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from hfmem_widget.features.holders.html import holders_bundle
from hfmem_widget.sources.heap.model import Holder
from hfmem_widget.sources.heap.scan import scan
from hfmem_widget.sources.storages import MANAGED

MIB = 2**20
_WORD, _FLOAT = 8, 32


@dataclasses.dataclass
class Record:
    name: str
    values: list[float]


@dataclasses.dataclass(slots=True)
class Slotted:
    name: str


class Sized(list[Any]):
    """A list whose own figure is wrong, and must not be asked for."""

    def __sizeof__(self) -> int:
        raise AssertionError


def floats(count: int) -> list[float]:
    return [index + 0.5 for index in range(count)]


def cached() -> Any:
    """Return a function that keeps the 8 MB that it returned."""
    read = functools.lru_cache(lambda number: bytes(200_000 + number))
    for number in range(40):
        read(number)
    return read


KINDS: dict[str, tuple[Callable[[], Any], int]] = {
    "bytes": (lambda: bytes(4 * MIB), 4 * MIB),
    "bytearray": (lambda: bytearray(4 * MIB), 4 * MIB),
    "a text": (lambda: "x" * (4 * MIB), 4 * MIB),
    "array.array": (lambda: array.array("d", [0.5]) * (MIB // 2), 4 * MIB),
    "a memoryview of bytes": (lambda: memoryview(bytes(4 * MIB)), 4 * MIB),
    "a buffer in memory": (lambda: io.BytesIO(bytes(4 * MIB)), 4 * MIB),
    "images as bytes": (lambda: [bytes(200_000) for _ in range(40)], 8_000_000),
    "a dict of bytes": (lambda: {k: bytes(200_000) for k in range(40)}, 8_000_000),
    "few keys": (lambda: {k: bytes(2_000_000) for k in "abcd"}, 8_000_000),
    "numbers": (lambda: floats(200_000), 200_000 * (_WORD + _FLOAT)),
    "a deque": (lambda: deque(floats(200_000)), 200_000 * (_WORD + _FLOAT)),
    "pairs": (lambda: [(x, x + 1) for x in floats(50_000)], 50_000 * (_WORD + 64 + 2 * _FLOAT)),
    "texts": (lambda: [f"{k:0100d}" for k in range(50_000)], 50_000 * (_WORD + 160)),
    "a set of texts": (lambda: {f"{k:0100d}" for k in range(40_000)}, 40_000 * 160 + 2_097_152),
    "lists": (lambda: [floats(100) for _ in range(1_000)], 1_000 * (904 + 100 * _FLOAT + 32)),
    "the same text": (lambda: ["x" * 1000] * 500_000, 500_000 * _WORD),
    "a user's list": (lambda: Sized(floats(100_000)), 100_000 * (_WORD + _FLOAT)),
    "results that functools.lru_cache keeps": (cached, 8_000_000),
    "slots": (lambda: [Slotted(f"{k:0100d}") for k in range(40_000)], 40_000 * (_WORD + 48 + 160)),
}
"""What makes each kind, and its bytes: CPython's allocator rounds every small object up to 16."""

NESTED = (
    lambda: [{"id": k, "text": f"{k:050d}", "values": floats(4)} for k in range(10_000)],
    lambda: [Record(f"{k:050d}", floats(8)) for k in range(10_000)],
    lambda: {"train": {k: floats(8) for k in range(10_000)}, "best": None},
    lambda: defaultdict(list, {k: floats(8) for k in range(10_000)}),
    lambda: OrderedDict((k, floats(8)) for k in range(10_000)),
    lambda: Counter({f"{k:050d}": k * 10**6 for k in range(20_000)}),
    lambda: tuple({"a": floats(4), "b": (f"{k:050d}",)} for k in range(10_000)),
)
"""Containers in one another, whose bytes a walk over all objects tells."""


SIZE = 1 << 20


def rows(**namespace: Any) -> dict[str, Holder]:
    return {row.path: row for row in scan(namespace).rows}


def sizes(**namespace: Any) -> dict[str, int]:
    return {path: row.bytes for path, row in rows(**namespace).items()}


def block(size: int = SIZE) -> np.ndarray[Any, Any]:
    return np.zeros(size, np.uint8)


def test_an_array_is_named_with_its_bytes() -> None:
    """An array's row has its name, bytes, shape and dtype, as NumPy tells them."""
    (row,) = scan({"a": np.zeros((128, 64), np.float32)}).rows

    assert (row.path, row.kind, row.device, row.tensors) == ("a", "NumPy", "cpu", 1)
    assert (row.bytes, row.shape, row.dtype) == (128 * 64 * 4, (128, 64), "float32")


def test_a_view_holds_what_it_is_a_view_of() -> None:
    """A view holds its whole array, which counts once for all views, also where the array has no name."""
    array = block()
    by_path = rows(array=array, view=array[5:10], turned=array.reshape(2, -1).T)

    assert {path: row.bytes for path, row in by_path.items()} == {"array": SIZE}
    assert set(by_path["array"].also) == {"view", "turned"}
    assert sizes(piece=block()[3:4]) == {"piece": SIZE}


def test_memory_that_numpy_and_torch_share_is_counted_once() -> None:
    """An array and a tensor over one memory count once, whichever made it and whatever part each sees."""
    array, tensor = block(), torch.zeros(SIZE, dtype=torch.uint8)

    assert sizes(array=array, tensor=torch.from_numpy(array)) == {"array": SIZE}
    assert sizes(zpart=array[7:], end=torch.from_numpy(array[SIZE // 2 :])) == {"zpart": SIZE}
    assert sizes(tensor=tensor, array=tensor.numpy()[5:]) == {"tensor": SIZE}
    assert sizes(tensor=torch.from_numpy(block())) == {"tensor": SIZE}


def test_a_mask_is_an_array_too() -> None:
    """A masked array counts with its mask."""
    masked = np.ma.MaskedArray(block(), mask=np.zeros(SIZE, bool))

    assert sum(sizes(masked=masked).values()) == 2 * SIZE


def test_an_array_in_a_file_is_no_memory_of_the_heap(tmp_path: Path) -> None:
    """The pages of a mapped file are the page cache's: the array and its views have a row of their own."""
    np.save(tmp_path / "a.npy", block())
    array = np.load(tmp_path / "a.npy", mmap_mode="r")
    holders = scan({"view": array[10:]}, {"cpu": 3.0 * SIZE})

    assert [(row.path, row.device, row.bytes) for row in holders.rows] == [("view", MANAGED, SIZE)]
    assert holders.remainders[0].bytes == 3 * SIZE
    assert "mapped files" in holders_bundle(holders)["text/plain"]


@pytest.mark.parametrize("is_viewed", [False, True], ids=["alone", "with an array in it"])
def test_a_block_of_shared_memory_has_a_row(*, is_viewed: bool) -> None:
    """A block and an array in it are one row apart from the heap; once closed, it holds nothing."""
    block = SharedMemory(create=True, size=SIZE)
    names: dict[str, Any] = {"block": block}
    if is_viewed:
        names["array"] = np.ndarray((SIZE,), np.uint8, block.buf)
    (row,) = scan(names).rows
    text = holders_bundle(scan({"block": block}))["text/plain"]
    expected = set(names)
    names.clear()
    block.close()
    block.unlink()

    assert ({row.path, *row.also}, row.device, row.bytes) == (expected, MANAGED, SIZE)
    assert f"shared memory \u00b7 {block.name}" in text
    assert scan({"block": block}).rows == ()


def test_no_code_of_a_subclass_runs() -> None:
    """The search calls neither the properties of a subclass nor its `__array_finalize__`."""

    class Own(np.ndarray):
        def __array_finalize__(self, other: object) -> None:
            seen.append(self)

        @property
        def base(self) -> Any:
            raise AssertionError

        nbytes = dtype = base

    seen: list[object] = []
    array = block().view(Own)
    seen.clear()

    assert sizes(array=array) == {"array": SIZE}
    assert not seen


def test_a_data_frame_is_one_row() -> None:
    """A frame has its columns and its index; a frame of some of its columns shares them."""
    frame = pd.DataFrame({"x": np.zeros(SIZE // 8), "n": np.arange(SIZE // 8)})
    by_path = rows(frame=frame, some=frame[["x"]], column=frame["n"])

    assert by_path["frame"].kind == "pandas"
    assert by_path["frame"].bytes == pytest.approx(2 * SIZE, abs=1000)
    assert set(by_path["frame"].also) == {"some", "column"}
    # The names of its columns are its own.
    assert sum(row.bytes for row in by_path.values()) == pytest.approx(2 * SIZE, abs=1000)


@pytest.mark.parametrize(
    "column",
    [
        pd.Series(pd.Categorical(["u", "v"] * 50_000)),
        pd.Series(pd.date_range("2020", periods=100_000)),
        pd.Series(np.arange(100_000), dtype="Int64"),
        pd.Series(np.zeros(100_000), index=np.arange(100_000, 0, -1)),
    ],
    ids=["categories", "dates", "nullable", "with an index"],
)
def test_every_kind_of_column_counts(column: pd.Series[Any]) -> None:
    """A column has the bytes that it keeps, which may be an array within an array."""
    by_path = sizes(column=column)
    expected = column.memory_usage(index=not isinstance(column.index, pd.RangeIndex))

    assert by_path.keys() == {"column"}
    assert by_path["column"] == pytest.approx(expected, rel=0.01)


def test_arrays_in_the_cells_of_a_frame_count() -> None:
    """Arrays in the cells of a frame, such as embeddings, count with the frame."""
    frame = pd.DataFrame({"embedding": [block(1000) for _ in range(50)]})

    assert sizes(frame=frame)["frame"] == pytest.approx(50 * (1000 + 8), abs=1000)


def test_arrow_counts_its_buffers(tmp_path: Path) -> None:
    """A buffer counts once, whatever tables have it; a table that is mapped from a file has its own row."""
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"x": np.zeros(SIZE // 8)})
    with (
        arrow.OSFile(str(tmp_path / "t"), "w") as file,
        arrow.ipc.new_file(file, table.schema) as out,
    ):
        out.write(table)
    mapped = arrow.ipc.open_file(arrow.memory_map(str(tmp_path / "t"))).read_all()
    holders = scan({"table": table, "slice": table.slice(5), "mapped": mapped}, {"cpu": SIZE + 9.0})

    assert {row.path: (row.kind, row.device, row.bytes) for row in holders.rows} == {
        "table": ("Arrow", "cpu", SIZE),
        "mapped": ("Arrow", MANAGED, SIZE),
    }
    assert holders.remainders[0].bytes == 9


def test_polars_tells_its_own_figure() -> None:
    """A frame of polars has the bytes that polars tells, and nothing within it is searched."""
    frame = pytest.importorskip("polars").DataFrame({"x": np.zeros(SIZE // 8)})
    by_path = rows(frame=frame, column=frame["x"])

    assert by_path["frame"].bytes == by_path["column"].bytes == SIZE
    assert by_path["frame"].kind == "polars"


def test_a_broken_table_is_taken_as_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that cannot be read counts nothing, and the other variables are still found."""
    pytest.importorskip("pyarrow")
    broken = SimpleNamespace(Table=type("Table", (), {"__module__": "pyarrow"}))
    monkeypatch.setitem(sys.modules, "pyarrow", broken)

    assert sizes(broken=broken.Table(), array=block()) == {"array": SIZE}


def test_arrays_and_tensors_in_one_list_have_a_row_each() -> None:
    """A list of arrays and tensors has one row of each kind."""
    holders = scan({"mixed": [block(), block(), torch.zeros(SIZE)]})
    lines = holders_bundle(holders)["text/plain"].splitlines()

    assert {row.kind: (row.bytes, row.tensors) for row in holders.rows} == {
        "NumPy": (2 * SIZE, 2),
        "tensors": (4 * SIZE, 1),
    }
    assert any("mixed[0..1]" in line and "NumPy" in line and "2 arrays" in line for line in lines)


def python_rows(**namespace: Any) -> list[Holder]:
    return [row for row in scan(namespace).rows if row.kind == "Python objects"]


def walked(value: Any) -> int:
    """Return the bytes of all objects below one, each once, as CPython takes them."""
    total, seen, waiting = 0, set(), [value]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, type):
            continue
        seen.add(id(thing))
        size = sys.getsizeof(thing)
        total += -(-size // 16) * 16 if size <= 512 else size
        waiting += gc.get_referents(thing)
        if isinstance(thing, dict):
            waiting += thing  # the collector does not know keys that are texts
    return total


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_a_row_with_its_bytes(kind: str) -> None:
    """One name has one row with the bytes of all its objects, give or take 3 %."""
    make, size = KINDS[kind]
    (row,) = python_rows(kept=make())
    assert row.path == "kept"
    assert row.bytes == pytest.approx(size, rel=0.03)


@pytest.mark.parametrize("make", NESTED)
def test_what_is_nested_counts_with_the_name(make: Callable[[], Any]) -> None:
    """However deep objects are nested, the bytes are those of a walk over all of them, give or take 10 %."""
    value = make()
    found_rows = python_rows(kept=value)
    assert sum(row.bytes for row in found_rows) == pytest.approx(walked(value), rel=0.1)
    assert all(row.path.startswith("kept") for row in found_rows)


def test_what_has_two_names_counts_once() -> None:
    """An object with two names is one row, which lists the other names, in containers too."""
    texts = [f"{k:0100d}" for k in range(50_000)]
    (row,) = python_rows(texts=texts, same=texts, within={"few": texts}, Out={3: texts}, _=texts)
    assert row.path == "texts"
    assert row.bytes == pytest.approx(50_000 * 168, rel=0.03)
    assert {"same", "within['few']"} <= set(row.also)


def test_what_two_containers_share_is_split_between_them() -> None:
    """Objects in two containers count once, divided between both."""
    records = [{"text": f"{k:0200d}"} for k in range(20_000)]
    both = python_rows(records=records, newest=records[::-1])
    assert {row.path for row in both} == {"records", "newest"}
    assert sum(row.bytes for row in both) == pytest.approx(walked(records), rel=0.1)


def test_a_name_with_little_has_no_row() -> None:
    """A name with less than one MiB has no row."""
    assert python_rows(few=floats(1000), text="x" * 100_000) == []


def test_a_field_with_much_has_a_row_of_its_own() -> None:
    """A field with much has a row with its path; the object's row has the rest."""

    @dataclasses.dataclass
    class Corpus:
        texts: list[bytes]
        model: torch.Tensor
        raw: bytes

    corpus = Corpus([bytes(100_000) for _ in range(60)], torch.zeros(4), bytes(3 * MIB))
    by_path = {row.path: row.bytes for row in python_rows(corpus=corpus)}
    assert by_path == {
        "corpus.texts": pytest.approx(6_000_000, rel=0.03),
        "corpus": pytest.approx(3 * MIB, rel=0.03),
    }


def test_objects_in_an_array_count_beside_its_own_bytes() -> None:
    """The objects in an array count as those of a list, beside eight bytes for each address."""
    texts = np.array([f"{k:0100d}" for k in range(30_000)], dtype=object)
    tensors = np.empty(2, object)
    tensors[1] = torch.zeros(SIZE)

    by_kind = {row.kind: row.bytes for row in scan({"texts": texts}).rows}
    assert by_kind == {"NumPy": 240_000, "Python objects": pytest.approx(30_000 * 160, rel=0.03)}
    assert sizes(tensors=tensors) == {"tensors": 16, "tensors[1]": 4 * SIZE}


def test_a_million_objects_are_weighed_within_a_quick_search() -> None:
    """A sample tells how many bytes they have, and the row says "about"."""
    many = [(index,) for index in range(1_000_000)]
    holders = scan({"many": many}, most_objects=20_000)
    (row,) = holders.rows
    assert "search ended early" in holders.bound
    assert row.bytes == pytest.approx(1_000_000 * (8 + 48 + 32), rel=0.05)
    text = holders_bundle(holders)["text/plain"]
    assert "many  (Python objects · list of 1,000,000 items, about)" in text


def test_the_users_own_random_numbers_stay_theirs() -> None:
    """A search draws its samples from a generator of its own."""
    import random

    state = random.getstate()
    python_rows(many=floats(300_000))
    assert random.getstate() == state


def test_what_has_no_size_of_its_own_takes_next_to_nothing() -> None:
    """Generators, classes and functions in a list have no bytes."""
    endless = (1 for _ in iter(int, 1))
    assert python_rows(odd=[map(str, ()), Record, floats, sys, endless]) == []


def test_texts_of_pandas_and_columns_of_arrow_have_their_type() -> None:
    """Such texts have a type as arrays have, since their number alone would say nothing."""
    arrow, pandas = pytest.importorskip("pyarrow"), pytest.importorskip("pandas")
    texts = [f"{k:0100d}" for k in range(20_000)]
    series = pandas.Series(texts, dtype=pandas.ArrowDtype(arrow.large_string()))
    text = holders_bundle(scan({"series": series, "column": arrow.array(texts)}))["text/plain"]

    assert "biggest 20,000 large_string" in text
    assert "biggest 20,000 string" in text
