"""The search by itself: its bounds, its order of blame, what it leaves behind, and what grew between two."""

import asyncio
import sys
import threading
import weakref
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Any

import pytest
import torch

from hfmem_widget.features.holders.html import growth_bundle, holders_bundle
from hfmem_widget.sources.heap import search
from hfmem_widget.sources.heap.model import Growth
from hfmem_widget.sources.heap.roots import Precedence, Root, remedy, user_modules
from hfmem_widget.sources.heap.scan import scan

SIZE = 4000
MIB = 1 << 20


def block(size: int = SIZE) -> torch.Tensor:
    return torch.zeros(size // 4)


def paths(**namespace: Any) -> list[str]:
    return [row.path for row in scan(namespace).rows]


def test_a_search_that_ended_early_says_so() -> None:
    """A search that stops at its limit of objects or of time says so, and so does a comparison with it."""
    many = {"many": [[block()] for _ in range(2000)]}
    partial, late = scan(many, most_objects=10), scan(many, most_seconds=0.0)
    whole = scan(many)
    assert whole.since(partial).bound == partial.since(whole).bound == partial.bound
    assert partial.objects == 10
    assert partial.bound == "the search ended early, after 10 objects"
    assert late.objects < 2000
    assert "ran out of time" in late.bound


def test_small_objects_are_looked_through_to_the_last() -> None:
    """A tensor deep in one of many small objects is found."""
    records: list[Any] = [{"fields": {"values": [index]}} for index in range(100)]
    records[70]["fields"]["values"].append(block())
    assert paths(records=records) == ["records[70]['fields']['values'][1]"]


def test_a_linked_list_without_end_ends() -> None:
    """A search goes 200 references deep, and says where there are more."""
    chain: list[Any] = [block()]
    for _ in range(5000):
        chain = [chain]
    holders = scan({"chain": chain})
    assert holders.rows == ()
    assert "200 references" in holders.bound


def test_a_graph_of_thousands_of_nodes_is_one_row() -> None:
    """A graph is followed to its end, however many nodes an unrolled loop has made."""
    hidden = torch.ones(8, requires_grad=True)
    loss = hidden
    for _ in range(3000):
        loss = loss.exp()
    (row,) = [row for row in scan({"loss": loss}).rows if row.path == "loss"]
    assert row.tensors == 3001  # each exp saves its result; the leaf is there too
    assert row.bytes == 3001 * 32


def test_what_a_backward_pass_freed_is_not_counted() -> None:
    """After a backward pass a graph keeps its leaf and the gradient, and no saved tensors."""
    weight = torch.ones(SIZE // 4, requires_grad=True)
    loss = weight.exp().sum()
    saved, leaf = SIZE, SIZE
    del weight
    (before,) = scan({"loss": loss}).rows
    loss.backward()
    (after,) = scan({"loss": loss}).rows
    gradient = SIZE
    assert before.bytes == 4 + saved + leaf
    assert after.bytes == 4 + leaf + gradient


def test_the_remainder_is_what_was_allocated_less_the_rows() -> None:
    """Each device's remainder is what was allocated less what was found."""
    holders = scan({"x": block()}, {"cpu": SIZE + 500.0, "cuda:0": 700.0, "cuda:1": float("nan")})
    assert [(one.device, one.bytes, one.is_host) for one in holders.remainders] == [
        ("cpu", 500.0, True),
        ("cuda:0", 700.0, False),
    ]


def test_outputs_are_blamed_after_variables() -> None:
    """A variable is named before an output, and a numbered output before the last ones."""
    kept = block()
    both = {"_": kept, "Out": {3: kept}, "deep": {"in": {"it": [kept]}}}
    (row,) = scan(both).rows
    assert row.path == "deep['in']['it'][0]"
    assert row.also == ("Out[3]", "_")


def test_ipythons_own_names_have_no_row() -> None:
    """IPython's own variables, such as `In`, have no row."""
    assert paths(In=[block()], _ih=[block()], get_ipython=block, __builtins__={"a": block()}) == []


def test_a_model_is_named_before_its_parts() -> None:
    """Weights have the name of the whole model; a variable with a part of it is listed beside."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    (weights,) = scan({"part": model[0], "model": model}).rows
    assert (weights.path, weights.kind, weights.bytes) == ("model", "weights", 80)
    assert "part" in weights.also


def test_cycles_are_no_other_names() -> None:
    """A path that leads through a cycle is no second name."""
    node: dict[str, Any] = {"kept": block()}
    node["self"] = node
    (row,) = scan({"node": node}).rows
    assert row.path == "node['kept']"
    assert row.also == ()


def test_a_dict_that_is_its_own_fields_has_one_name() -> None:
    """It holds itself, which is no other name for what is in it."""

    class Config(dict):  # type: ignore[type-arg]
        def __init__(self, **items: object) -> None:
            super().__init__(**items)
            self.__dict__ = self

    (row,) = scan({"config": Config(weight=torch.zeros(2**18))}).rows

    assert (row.path, row.also) == ("config['weight']", ())


def test_only_modules_that_are_not_installed_are_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches in a user's own module are found; libraries are not searched."""
    mine = ModuleType("mine_alone")
    mine.__file__ = "/somewhere/mine_alone.py"
    mine.CACHE = {"a": block()}  # type: ignore[attr-defined]  # what a user's module has
    sys.modules["mine_alone"] = mine
    try:
        theirs = user_modules()
        assert "mine_alone" in theirs
        assert not {"torch", "json", "numpy", "hfmem_widget", "__main__"} & set(theirs)
        monkeypatch.setattr(search, "user_modules", lambda: {"mine_alone": theirs["mine_alone"]})
        assert paths() == ["mine_alone.CACHE['a']"]
    finally:
        del sys.modules["mine_alone"]


@pytest.mark.usefixtures("uncollected")
def test_nothing_is_left_behind() -> None:
    """A search keeps neither objects nor frames alive, not even until a collection."""

    class Kept:
        pass

    def fails(kept: object) -> None:
        inner = kept
        raise ValueError(inner)

    kept = Kept()
    kept.block = block()  # type: ignore[attr-defined]  # an object of the user's
    reference = weakref.ref(kept)
    error = None
    try:
        fails(kept)
    except ValueError as caught:
        error = caught.with_traceback(caught.__traceback__ and caught.__traceback__.tb_next)
    found = scan({"error": error, "kept": kept})
    assert found.rows[0].path == "kept.block"
    del error, kept
    assert reference() is None


def test_a_generator_may_let_go_what_was_seen_in_it() -> None:
    """A variable of a generator that was searched is freed as soon as the generator deletes it."""

    def batches(batch: object) -> Iterator[int]:
        yield 1
        del batch
        yield 2

    first = block()
    reference = weakref.ref(first)
    running = batches(first)
    next(running)
    assert paths(running=running)[0] == "running \u2192 batch"
    del first
    next(running)
    assert reference() is None


def test_what_a_function_called_locals_for_stays_its_own() -> None:
    """A dict that ``locals()`` has returned is not emptied by a search."""
    mine = []

    def batches() -> Iterator[int]:
        batch = block()
        mine.append(locals())
        yield len(batch)

    running = batches()
    next(running)
    scan({"running": running})
    assert "batch" in mine[0]


def test_another_thread_may_change_what_is_searched() -> None:
    """A dict that another thread changes meanwhile does not end the search with an error."""
    table: dict[int, Any] = {}
    stop = threading.Event()

    def change() -> None:
        step = 0
        while not stop.is_set():
            table[step % 50] = [block()]
            table.pop((step * 7) % 50, None)
            step += 1

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(30):
            scan({"table": table})
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("odd", [type, object(), memoryview(b"a"), iter([]), 1j, ...])
def test_odd_objects_hold_nothing(odd: object) -> None:
    """Objects that cannot be looked into are passed over."""
    assert paths(odd=odd) == []


def test_a_long_path_through_calls_has_both_of_its_ends() -> None:
    """A long path has the user's first function and the variable; the calls between are cut."""

    def at_depth(left: int) -> object:
        kept = torch.zeros(1 << 18)
        if left:
            return at_depth(left - 1)
        raise ValueError(kept.shape)

    try:
        at_depth(12)
    except ValueError as caught:
        error = caught
    paths = [one.path for one in scan({"error": error}, {}).rows]

    assert any(
        one.startswith("error → test_") and one.endswith(" → … → at_depth() → kept")
        for one in paths
    )


def lazy(name: str) -> object:
    raise ImportError(name)


@pytest.mark.parametrize("fields", [{}, {"__getattr__": lazy}, {"nn": None}])
def test_what_is_only_called_torch_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    """A search finds no tensors, and raises nothing, where a folder or file of the user's is called torch."""
    namesake = ModuleType("torch")
    vars(namesake).update(fields)
    monkeypatch.setitem(sys.modules, "torch", namesake)

    assert scan({"values": [[1], object()]}).rows == ()


def between(namespace: dict[str, Any], change: Any) -> Growth:
    before = scan(namespace)
    change()
    return scan(namespace).since(before)


def rows(growth: Growth) -> list[tuple[str, int, int, int]]:
    return [(one.path, one.bytes, one.tensors, one.now) for one in growth.rows]


def test_a_list_that_got_longer_is_the_same_row() -> None:
    """A list that got longer has one row with the difference."""
    kept = [block(MIB) for _ in range(3)]
    growth = between({"kept": kept}, lambda: kept.extend(block(MIB) for _ in range(4)))

    assert rows(growth) == [("kept[0..6]", 4 * MIB, 4, 7 * MIB)]
    assert growth.freed == 0


def test_a_dict_whose_keys_became_many_has_grown_by_the_new_ones() -> None:
    """A dict has grown by its new keys, also where few keys had rows of their own before."""
    cache = {key: block(MIB) for key in range(4)}
    growth = between(
        {"cache": cache}, lambda: cache.update({key: block(MIB) for key in range(4, 40)})
    )
    (row,) = growth.rows

    assert (row.path, row.bytes, row.now) == ("cache[0, … 40 keys]", 36 * MIB, 40 * MIB)
    assert growth.freed == 0


def test_long_keys_that_begin_alike_are_counted_each() -> None:
    """Long keys that begin alike, such as names of parameters, each count; a key that is cut says so."""
    names = [f"model.layers.{number}.{'self_attention.' * 3}weight" for number in range(3)]
    kept = {f"{name}.{part}": block(MIB) for name in names for part in "abc"}
    (row,) = scan({"kept": kept}).rows

    assert (row.path, row.tensors) == (f"kept[{names[0][:40]!r}…, … 9 keys]", 9)


def test_names_that_have_not_grown_have_no_row() -> None:
    """A name that holds as much as before has no row, and the table says that none grew."""
    growth = between({"kept": [block(MIB)]}, lambda: None)

    assert growth.rows == ()
    assert "Nothing grew." in growth_bundle(growth)["text/plain"]


def test_the_table_has_the_growth_of_each_name() -> None:
    """The table has the largest growth first, with what each name has now, and what others freed."""
    namespace: dict[str, Any] = {"kept": [block(MIB)], "gone": block(MIB)}

    def change() -> None:
        namespace["kept"] += [block(MIB) for _ in range(8)]
        namespace["<b>"] = torch.zeros(8)
        del namespace["gone"]

    bundle = growth_bundle(between(namespace, change))
    device, first, second, below = bundle["text/plain"].splitlines()

    assert device == "cpu"
    assert first == " +8.00 MiB  kept[0..8]  (8 more tensors · 9.00 MiB in total)"
    assert second == "+<0.01 MiB  1 other name"
    assert below == "Other variables hold 1.00 MiB less."
    assert "kept[0..8]</code>" in bundle["text/html"]


def test_a_search_from_a_debugger_leaves_the_functions_variables() -> None:
    """A search from a debugger changes no variable, though up to 3.12 Python writes them back."""

    def stopped() -> tuple[list[int], int]:
        first = [1]
        second = 2
        return first, second

    def debugger(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is stopped.__code__ and event == "line":
            scan({}, others=[Root("the running stopped()", frame, Precedence.RUNNING)])
        return debugger

    before = sys.gettrace()
    sys.settrace(debugger)
    try:
        assert stopped() == ([1], 2)
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("as_arrays", [False, True])
def test_all_views_of_a_storage_are_its_holders(as_arrays: bool) -> None:
    """It stays until the last of them is gone, and their own elements are fewer."""
    whole: Any = torch.zeros(8, 2**17)
    if as_arrays:
        whole = whole.numpy().copy()
    holders = scan(
        {"rows": [whole[number, :4] for number in range(8)], "whole": [torch.zeros(2**18)]}
    )

    assert [(row.path, row.views, row.bytes) for row in holders.rows] == [
        ("rows[0..7]", 8, 2**22),
        ("whole[0]", 0, 2**20),
    ]
    text = holders_bundle(holders)["text/plain"]
    assert "rows[0..7]  (" + "NumPy · " * as_arrays + "8 views of larger memory · " in text


def test_what_copies_of_views_would_hold_is_said_where_they_would_free_memory() -> None:
    """Nothing is said where the views show all of the memory, or another name holds it, too."""

    def block_of_rows() -> torch.Tensor:
        return torch.zeros(8, 2**17)

    several = block_of_rows()
    names = {
        "rows": [block_of_rows()[0], block_of_rows()[1]],
        "array": block_of_rows().numpy()[0],
        "all": [*block_of_rows()],
        "whole": [several, several[0]],
        "other": several[1],
    }
    remedies = [text for row in scan(names).rows if (text := remedy(row))]

    copies = "Copies of the views in {} (.clone() of tensors, .copy() of arrays) "
    copies += "would hold {} MiB instead of {} MiB."
    assert remedies == [
        copies.format("rows[0..1]", "1.00", "8.00"),
        copies.format("array", "0.50", "4.00"),
    ]


def test_the_error_of_a_cancelled_task_holds_the_variables_of_its_functions() -> None:
    """The error holds them as any other does, although its class is asyncio's."""

    async def work() -> None:
        held = block()
        await asyncio.sleep(100)
        del held

    async def cancelled() -> asyncio.Task[None]:
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        return task

    (path,) = paths(task=asyncio.run(cancelled()))
    assert path.startswith("task")
    assert path.endswith("held")
