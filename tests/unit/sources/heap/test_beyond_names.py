"""What no name of the notebook leads to: what libraries hold, functions that run, and uncollected cycles."""

import gc
import sys
import threading
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hfmem_widget.features.holders.html import holders_bundle
from hfmem_widget.sources.heap import roots
from hfmem_widget.sources.heap.model import Holder, Holders
from hfmem_widget.sources.heap.roots import kernel_roots, remedy
from hfmem_widget.sources.heap.scan import scan

MIB = 2**20


def found(**namespace: Any) -> Holders:
    return scan(namespace, {"cpu": 10.0**12}, kernel_roots(), is_thorough=True)


def rows(path: str, **namespace: Any) -> list[Holder]:
    return [row for row in found(**namespace).rows if path in row.path and row.bytes >= MIB]


@pytest.fixture(autouse=True)
def uncollected(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave cycles where they are, and the thousands of modules of libraries but those that a test makes."""
    everything = roots.modules_of_libraries
    monkeypatch.setattr(
        roots,
        "modules_of_libraries",
        lambda: {name: each for name, each in everything().items() if name == "some_library"},
    )
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


def test_uncollected_cycles_have_a_row() -> None:
    """Uncollected cycles have a row, which says how to free them, though no name leads to them."""
    unnamed = "objects that no name leads to"
    # What other tests have left in C is nobody's, either.
    sizes = {row.kind: row.bytes for row in rows(unnamed)}
    makes = (
        lambda: torch.ones(4 * MIB),
        lambda: torch.nn.Linear(2048, 2048, bias=False),
        lambda: np.ones(2 * MIB),
    )
    for make in makes:
        cycle = SimpleNamespace(kept=make())
        cycle.itself = cycle
    del cycle
    holders = found()
    cycles = [row for row in holders.rows if unnamed in row.path and row.bytes >= MIB]

    more = {row.kind: row.bytes - sizes.get(row.kind, 0) for row in cycles}
    assert more["tensors"] == pytest.approx(32 * MIB, rel=0.1)
    assert more["NumPy"] == pytest.approx(16 * MIB, rel=0.1)
    assert all(
        "may wait for the garbage collector: %memholders --free garbage" in remedy(row)
        for row in cycles
    )
    assert "%memholders --free garbage" in holders_bundle(holders)["text/plain"]


def test_the_search_itself_collects_nothing() -> None:
    """A search leaves cycles uncollected, and the collector as it was."""
    gc.enable()
    cycle = SimpleNamespace(kept=torch.ones(MIB))
    cycle.itself = cycle
    many = [[[index]] for index in range(20_000)]
    del cycle
    assert rows("no name leads to", many=[many])
    assert gc.isenabled()


class ModuleInC(ModuleType):
    """A module that the collector finds more in than its fields, as in those written in C."""

    __slots__ = ("state",)
    state: object


def test_no_module_is_asked_for_what_its_code_in_c_keeps() -> None:
    """The state of a C module is not searched: asyncio's has freed objects (python/cpython#122695)."""
    module = ModuleInC("in_c")
    module.state = np.ones(2 * MIB)
    before = sum(row.bytes for row in rows("no name leads to"))
    del module.state

    assert sum(row.bytes for row in rows("no name leads to")) == before


def some_library() -> ModuleType:
    library = ModuleType("some_library")
    library.__file__ = f"{sys.prefix}/lib/some_library.py"
    fields = {"__module__": "some_library", "kept": {"a": [torch.ones(MIB)]}}
    vars(library).update(Cache=type("Cache", (), fields), _bars=[np.ones(MIB), np.ones(MIB)])
    return library


def test_what_a_library_holds_has_the_librarys_name() -> None:
    """A library's row has the module's attribute that leads there, of a class too."""
    sys.modules["some_library"] = some_library()
    try:
        named = {row.path: row.bytes for row in rows("some_library")}
    finally:
        del sys.modules["some_library"]
    assert named == {
        "the library some_library \u2192 some_library.Cache.kept": 4 * MIB,
        "the library some_library \u2192 some_library._bars[0..1]": 16 * MIB,
    }


def test_pyplots_open_figures_are_one_row() -> None:
    """Open figures are one row, which says how to close them, also in a quick search."""
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("agg")
    for _ in range(10):
        plt.subplots()[1].imshow(np.zeros((500, 500)))
    try:
        (row,) = rows("pyplot")
        quick = scan({}, others=kernel_roots()).rows
    finally:
        plt.close("all")
    assert row.path == "pyplot's open figures[0..9]"
    assert row.bytes == pytest.approx(10 * 500 * 500 * 8, rel=0.05)
    assert "plt.close('all')" in remedy(row)
    assert row.path in {each.path for each in quick}


def test_the_variables_of_a_running_thread_have_rows() -> None:
    """The variables of a running function have its name, be they tensors or Python's own objects."""
    is_there, may_end = threading.Event(), threading.Event()

    def worker() -> None:
        chunk = [torch.ones(MIB)]
        raw = bytes(3 * MIB)
        is_there.set()
        may_end.wait()
        del chunk, raw

    thread = threading.Thread(target=worker)
    thread.start()
    is_there.wait()
    named = {row.path: row.bytes for row in rows("the running worker()")}
    may_end.set()
    thread.join()
    assert named == {
        "the running worker() \u2192 chunk[0]": 4 * MIB,
        "the running worker() \u2192 raw": pytest.approx(3 * MIB, abs=64),
    }


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda model: SimpleNamespace(model=model).model,
        lambda model: torch.nn.ModuleDict({"module": model}),
        lambda model: torch.nn.ModuleDict({"base_model": torch.nn.ModuleDict({"model": model})}),
        lambda model: torch.nn.ModuleDict({"_orig_mod": model}),
    ],
)
def test_parts_are_those_within_wrappers(wrapped: Any) -> None:
    """The parts of a wrapped model, as by PEFT, DDP or torch.compile, are those of the model within."""
    layers = torch.nn.ModuleList([torch.nn.Linear(256, 256) for _ in range(4)])
    model = torch.nn.ModuleDict({"layers": layers, "head": torch.nn.Linear(256, 512)})
    (row,) = scan({"model": wrapped(model)}).rows
    names = {name.rpartition(".")[2] for name, _ in row.parts}
    assert names == {"layers[0]", "layers[1]", "layers[2]", "layers[3]", "head"}


def test_images_of_pil_count() -> None:
    """An image of PIL has the bytes of its pixels: three colours take four bytes."""
    image = pytest.importorskip("PIL.Image")
    kept = [image.new("RGB", (1000, 500)) for _ in range(3)] + [image.new("L", (1000, 500))]
    (row,) = scan({"kept": kept}).rows
    assert (row.path, row.kind, row.bytes) == ("kept[0..3]", "PIL", 3 * 2_000_000 + 500_000)
