"""Python's own objects: texts, bytes, numbers, containers and instances, by the name that holds them."""

from __future__ import annotations

import dataclasses
import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from hfmem_widget.features.holders.html import holders_bundle
from hfmem_widget.sources.heap.model import Holder
from hfmem_widget.sources.heap.scan import scan
from tests.data.holdings import KINDS, MIB, NESTED, Kept, floats


def rows(**namespace: Any) -> list[Holder]:
    return [row for row in scan(namespace).rows if row.kind == "Python objects"]


def walked(value: Any) -> int:
    """Return the bytes of all objects below one, each once, as CPython takes them."""
    total, seen, waiting = 0, set(), [value]
    while waiting:
        held = waiting.pop()
        if id(held) in seen or isinstance(held, type):
            continue
        seen.add(id(held))
        size = sys.getsizeof(held)
        total += -(-size // 16) * 16 if size <= 512 else size
        waiting += gc.get_referents(held)
    return total


@pytest.mark.parametrize("kept", KINDS, ids=[kept.name for kept in KINDS])
def test_each_kind_has_a_row_with_its_bytes(kept: Kept) -> None:
    """Of one name, give or take 3 %."""
    (row,) = rows(kept=kept.make())
    assert row.path == "kept"
    assert row.bytes == pytest.approx(kept.bytes, rel=0.03)


@pytest.mark.parametrize("make", NESTED)
def test_what_is_nested_counts_with_the_name(make: Callable[[], Any]) -> None:
    """However deep it lies: the bytes are those of a walk over every object, give or take 10 %."""
    kept = make()
    assert sum(row.bytes for row in rows(kept=kept)) == pytest.approx(walked(kept), rel=0.1)
    assert all(row.path.startswith("kept") for row in rows(kept=kept))


def test_what_has_two_names_counts_once() -> None:
    """The other name is told beside, in a container too."""
    texts = [f"{k:0100d}" for k in range(50_000)]
    (row,) = rows(texts=texts, same=texts, within={"few": texts}, Out={3: texts}, _=texts)
    assert row.path == "texts"
    assert row.bytes == pytest.approx(50_000 * 168, rel=0.03)
    assert {"same", "within['few']"} <= set(row.also)


def test_what_two_containers_share_is_split_between_them() -> None:
    """All of it counts once, however many refer to it."""
    records = [{"text": f"{k:0200d}"} for k in range(20_000)]
    both = rows(records=records, newest=records[::-1])
    assert {row.path for row in both} == {"records", "newest"}
    assert sum(row.bytes for row in both) == pytest.approx(walked(records), rel=0.1)


def test_a_name_with_little_has_no_row() -> None:
    """What is below one MiB is not worth one."""
    assert rows(few=floats(1000), text="x" * 100_000) == []


def test_a_field_with_much_is_told_by_its_path() -> None:
    """And the rest of an object by the object's."""

    @dataclasses.dataclass
    class Corpus:
        texts: list[bytes]
        model: torch.Tensor
        raw: bytes

    corpus = Corpus([bytes(100_000) for _ in range(60)], torch.zeros(4), bytes(3 * MIB))
    found = {row.path: row.bytes for row in rows(corpus=corpus)}
    assert found == {
        "corpus.texts": pytest.approx(6_000_000, rel=0.03),
        "corpus": pytest.approx(3 * MIB, rel=0.03),
    }


def test_texts_in_an_array_of_objects_count_beside_its_own_bytes() -> None:
    """The array holds addresses, eight bytes each."""
    array = np.array([f"{k:0100d}" for k in range(30_000)], dtype=object)
    found = {row.kind: row.bytes for row in scan({"array": array}).rows}
    assert found == {"NumPy": 240_000, "Python objects": pytest.approx(30_000 * 160, rel=0.03)}


def test_a_million_objects_are_weighed_within_a_quick_search() -> None:
    """A sample tells how many bytes they have, and the row says "about"."""
    many = [(index,) for index in range(1_000_000)]
    found = scan({"many": many}, most_objects=20_000)
    (row,) = found.rows
    assert "search ended early" in found.bound
    assert row.bytes == pytest.approx(1_000_000 * (8 + 48 + 32), rel=0.05)
    text = holders_bundle(found)["text/plain"]
    assert "many  (Python objects · list of 1,000,000 items, about)" in text


def test_the_users_own_random_numbers_stay_theirs() -> None:
    """A sample is taken by a generator of its own."""
    import random

    state = random.getstate()
    rows(many=floats(300_000))
    assert random.getstate() == state


def endless() -> Iterator[int]:
    while True:
        yield 1


def test_what_has_no_size_of_its_own_takes_next_to_nothing() -> None:
    """Generators, classes and functions in a list: no figure is made up for them."""
    assert rows(odd=[map(str, ()), Kept, floats, sys, endless()]) == []
