"""What came to which name between two searches."""

from __future__ import annotations

from typing import Any

import torch

from hfmem_widget.features.holders.html import growth_bundle
from hfmem_widget.sources.heap.model import Growth
from hfmem_widget.sources.heap.scan import scan

SIZE = 1 << 20


def block() -> torch.Tensor:
    return torch.zeros(SIZE // 4)


def between(namespace: dict[str, Any], change: Any) -> Growth:
    """Return what grew while something happened."""
    before = scan(namespace)
    change()
    return scan(namespace).since(before)


def rows(growth: Growth) -> list[tuple[str, int, int, int]]:
    return [(one.path, one.bytes, one.tensors, one.now) for one in growth.rows]


def test_a_list_that_got_longer_is_the_same_row() -> None:
    """Its path has other numbers; what came is the difference."""
    kept = [block() for _ in range(3)]
    growth = between({"kept": kept}, lambda: kept.extend(block() for _ in range(4)))

    assert rows(growth) == [("kept[0..6]", 4 * SIZE, 4, 7 * SIZE)]
    assert growth.freed == 0


def test_a_dict_whose_keys_became_many_has_grown_by_the_new_ones() -> None:
    """A few keys are rows of their own; many are one row, which had what those few held."""
    cache = {key: block() for key in range(4)}
    growth = between({"cache": cache}, lambda: cache.update({key: block() for key in range(4, 40)}))
    (row,) = growth.rows

    assert (row.path, row.bytes, row.now) == ("cache[0, … 40 keys]", 36 * SIZE, 40 * SIZE)
    assert growth.freed == 0


def test_a_new_name_is_all_growth() -> None:
    """It held nothing before; what others let go is told as a sum."""
    namespace: dict[str, Any] = {"old": block(), "shrinks": [block(), block()]}

    def change() -> None:
        namespace["new"] = block()
        del namespace["old"]
        namespace["shrinks"].pop()

    growth = between(namespace, change)

    assert rows(growth) == [("new", SIZE, 1, SIZE)]
    assert growth.freed == 2 * SIZE


def test_names_that_stay_are_not_told() -> None:
    """A name that holds as much as before has no row, and the table says that none grew."""
    growth = between({"kept": [block()]}, lambda: None)

    assert growth.rows == ()
    assert "Nothing grew." in growth_bundle(growth)["text/plain"]


def test_a_bound_of_either_search_is_told() -> None:
    """What was not looked at then may seem new."""
    namespace = {"many": [[block()] for _ in range(50)]}
    cut, whole = scan(namespace, most_objects=10), scan(namespace)

    assert whole.since(cut).bound == cut.bound
    assert cut.since(whole).bound == cut.bound


def test_the_table_says_how_much_came_to_whom() -> None:
    """Biggest first, what is in the name by now beside it, and what others let go below."""
    namespace: dict[str, Any] = {"kept": [block()], "gone": block()}

    def change() -> None:
        namespace["kept"] += [block() for _ in range(8)]
        namespace["<b>"] = torch.zeros(8)
        del namespace["gone"]

    bundle = growth_bundle(between(namespace, change))
    device, first, second, below = bundle["text/plain"].splitlines()

    assert device == "cpu"
    assert first == " +8.00 MiB  kept[0..8]  (8 more tensors · 9.00 MiB in total)"
    assert second == "+<0.01 MiB  1 other name"
    assert below.startswith("Other variables hold 1.00 MiB less; searched in ")
    assert "kept[0..8]</code>" in bundle["text/html"]


def test_a_table_shows_names_as_text() -> None:
    """A key of a dict may be anything."""
    cache: dict[str, Any] = {}
    growth = between({"cache": cache}, lambda: cache.update({"<b>$x$": block()}))
    html = growth._repr_mimebundle_()["text/html"]

    assert "<b>" not in html
    assert "&lt;b&gt;" in html
