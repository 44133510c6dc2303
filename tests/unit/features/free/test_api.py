"""`free()` outside of a notebook, what it does to odd objects, and how a release reads."""

import math
import sys
import weakref
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

import hfmem_widget
from hfmem_widget.analysis.others import kept_text
from hfmem_widget.errors import OptionError
from hfmem_widget.features.free.api import HANDLED, carry_out, parse_request
from hfmem_widget.features.free.html import release_bundle
from hfmem_widget.features.free.model import Change, Freeable, Release
from hfmem_widget.sources.heap.model import Holder
from hfmem_widget.sources.torch_cuda import CudaAllocator
from hfmem_widget.text import GIB, MIB
from tests.data.texts import assert_reads
from tests.fakes.torch_cuda import FakeAllocator, FakeTorch

PLAN = Release((), {})


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the note on what malloc keeps of earlier tests."""
    monkeypatch.setattr("hfmem_widget.features.free.api.kept_text", lambda _read: "")


@pytest.fixture(autouse=True)
def variables(main: dict[str, Any]) -> None:
    main.update(losses=[torch.zeros(2**18)], errors=[torch.zeros(2**18)])


def test_a_variable_is_deleted_and_its_memory_freed(main: dict[str, Any]) -> None:
    """Its tensors are dead, and their bytes were predicted."""
    tensor = weakref.ref(main["losses"][0])
    released = hfmem_widget.free("losses")
    assert "losses" not in main
    assert tensor() is None
    (item,) = released.items
    assert (item.name, item.what) == ("losses", ())
    assert item.bytes == {"cpu": pytest.approx(MIB, rel=1e-3)}
    assert released.done


@pytest.mark.parametrize("names", [[[1]], ["errors", 3], [{}]])
def test_an_invalid_name_is_an_error(main: dict[str, Any], names: list[Any]) -> None:
    """The error says what is allowed, and nothing is freed."""
    message = r"names, such as 'errors', 'Out\[12\]' or a variable's name, not (list|int|dict)"
    with pytest.raises(OptionError, match=message):
        hfmem_widget.free(*names)
    with pytest.raises(OptionError, match=message):
        hfmem_widget.free(variables=names)

    assert set(main) == {"losses", "errors"}


def test_nothing_is_freed_without_names_or_in_a_dry_run(main: dict[str, Any]) -> None:
    """The result has what could be freed: groups, the largest variables, or the named variable."""
    released, dry = hfmem_widget.free(), hfmem_widget.free("losses", dry_run=True)
    assert set(main) == {"losses", "errors"}
    assert not released.done
    assert not dry.done
    assert dry.together == {"cpu": pytest.approx(MIB, rel=1e-3)}
    assert [one.name for one in released.items] == ["errors", "outputs"]
    assert {one.name for one in released.variables} == {"losses", "errors"}


def test_a_word_does_not_free_the_variable_of_that_name(main: dict[str, Any]) -> None:
    """The variable goes only where it is named as a variable."""
    released = hfmem_widget.free("errors")
    assert "errors" in main
    assert released.notes == ("The variable errors stays: %memholders --free -v errors frees it.",)
    released = hfmem_widget.free(variables=["errors"])
    assert "errors" not in main
    assert released.steps[0] == "the variable errors freed"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("loses", "no variable 'loses'; did you mean losses?"),
        ("error", "no variable 'error'; did you mean errors?"),
        ("losses[0]", "losses[0] is a part of the variable losses"),
        ("losses.x", "losses.x is a part of the variable losses"),
        ("Out[3]", "no variable 'Out[3]'"),
        ("", "no variable ''"),
        ("__name__", "no variable '__name__'"),
        ("js", "js is a module, not a variable, and cannot be freed"),
    ],
)
def test_an_unknown_name_frees_nothing(main: dict[str, Any], name: str, message: str) -> None:
    """One wrong name among several is enough, and the error has a suggestion."""
    main["js"] = sys
    with pytest.raises(OptionError) as raised:
        hfmem_widget.free("losses", name)
    assert message in str(raised.value)
    assert set(main) == {"losses", "errors", "js"}


def test_the_last_error_goes_with_the_variables_it_went_through() -> None:
    """It is deleted wherever Python keeps it, as after an error at an interactive prompt."""

    def train() -> None:
        activations, text = torch.zeros(2**20), b"1" * 2**24
        tensors.append(weakref.ref(activations))
        raise ValueError(activations.shape, len(text))

    tensors: list[Any] = []
    try:
        train()
    except ValueError as error:
        sys.last_value, sys.last_type = error, ValueError
        sys.last_traceback = error.__traceback__
    (errors, *_) = hfmem_widget.free(dry_run=True).items
    assert errors.bytes == {"cpu": pytest.approx(20 * MIB, rel=1e-3)}
    hfmem_widget.free("errors")
    assert tensors[0]() is None
    assert not hasattr(sys, "last_value")
    assert not hasattr(sys, "last_traceback")


def test_an_error_that_is_being_handled_is_noted() -> None:
    """Within an `except` block Python itself still keeps the error."""
    try:
        int("one")
    except ValueError:
        inside = hfmem_widget.free("errors")
    assert HANDLED in inside.notes
    assert HANDLED not in hfmem_widget.free("errors").notes


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize(
    "collects", [{"what": ["garbage"]}, {"what": ["cache"], "variables": ["other"]}], ids=str
)
def test_a_cycle_is_collected_only_on_request(
    main: dict[str, Any], collects: dict[str, list[str]]
) -> None:
    """It outlives its name until then; "cache" alone collects nothing, a variable beside it does."""

    class Node:
        pass

    node: Any = Node()
    node.itself = main["node"] = node
    main["other"] = None
    reference = weakref.ref(node)
    del node
    hfmem_widget.free("node", collect=False)
    hfmem_widget.free("cache")
    assert reference() is not None
    assert "node" not in main
    hfmem_widget.free(*collects["what"], variables=collects.get("variables", ()))
    assert reference() is None


def test_the_cache_is_emptied_once_and_only_where_the_device_is_up() -> None:
    """The allocator's cache is emptied on request alone, and never where its device was not initialised."""
    fake = FakeAllocator()
    done = carry_out(parse_request(["cache"], shell=None), PLAN, fake)
    assert done.steps == ("CUDA's cache emptied",)
    carry_out(parse_request(["garbage"], shell=None, empty_cache=False), PLAN, fake)
    fake.initialized = False
    carry_out(parse_request(["garbage"], shell=None), PLAN, fake)
    assert fake.calls["empty_cache"] == 1
    torch: Any = FakeTorch(FakeAllocator())
    torch.cuda.empty_cache = torch.allocator.empty_cache
    carry_out(parse_request(["cache"], shell=None), PLAN, CudaAllocator({"torch": torch}))
    assert torch.allocator.calls["empty_cache"] == 1


def test_an_error_of_cuda_becomes_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error while the cache is emptied is not raised."""
    fake = FakeAllocator()
    error = RuntimeError("CUDA error: device-side assert triggered")
    monkeypatch.setattr(fake, "empty_cache", Mock(side_effect=error))
    done = carry_out(parse_request(["garbage"], shell=None), PLAN, fake)
    assert done.notes == (
        "%memholders --free ended early (RuntimeError: CUDA error: device-side assert triggered).",
    )


class Angry:
    """Raises when it goes."""

    def __del__(self) -> None:
        message = "no"
        raise RuntimeError(message)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_errors_keep_no_other_object(main: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in `__del__` is reported on stderr, and the other objects are freed."""
    ignored: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda one: ignored.append(str(one.exc_value)))
    main["angry"] = Angry()
    done = hfmem_widget.free("angry", "losses")
    assert set(main) == {"errors"}
    assert ignored == ["no"]
    assert done.steps[:2] == ("angry freed", "losses freed")


RELEASED = Release(
    (
        Freeable("errors", ("the error of cell [7]",), {"cuda:0": int(0.5 * GIB)}),
        Freeable("outputs", ("Out[3]", "Out[12]", "a", "b", "c"), {"cuda:0": int(2.7 * GIB)}),
    ),
    {"cuda:0": int(3.2 * GIB)},
    variables=(Freeable("losses", (), {"cuda:0": int(9 * GIB)}),),
    cached={"cuda:0": 1.2 * GIB},
    seconds=0.1,
    objects=1200,
)
DONE = Release(
    RELEASED.items,
    RELEASED.together,
    done=True,
    steps=("errors freed", "outputs freed", "12 unreachable objects collected"),
    changes=(
        Change("cuda:0", "allocated", "allocated", 5 * GIB, 1.8 * GIB),
        Change("cuda:0", "reserved", "reserved", 6 * GIB, 2 * GIB),
        Change("cuda:0", "device_used", "device in use", 8 * GIB, 4 * GIB),
        Change("cuda:1", "allocated", "allocated", 0.0, 0.0),
        Change("cpu", "allocated", "private memory", 200 * MIB, 200 * MIB),
    ),
    stays=(Holder("cache['<b>$']", "tensors", "cuda:0", int(GIB), 1, (1,), "float32"),),
    notes=("Something <odd>.",),
    seconds=0.1,
    objects=1200,
)


def test_the_text_of_a_dry_run() -> None:
    """A table has the memory that would be free, in groups and together."""
    text = release_bundle(RELEASED)["text/plain"]

    assert_reads("free_found", text)
    for evidence in ("512.0 MiB", "2.70 GiB", "3.20 GiB", "cuda:0 1.20 GiB", "losses 9.00 GiB"):
        assert evidence in text


def test_the_text_of_a_release() -> None:
    """It is about devices in use; names have no markup."""
    text, html = release_bundle(DONE)["text/plain"], release_bundle(DONE)["text/html"]

    assert "<b>" not in html
    assert "<odd>" not in html
    assert "cache[&#x27;&lt;b&gt;$&#x27;]</code>" in html
    assert_reads("free_done", text)
    assert "cuda:0 reserved       6.00 \u2192 2.00 GiB  \u22124.00 GiB" in text
    assert "1.00 GiB by cache['<b>$']" in text
    assert DONE.freed("cuda:0") == 3.2 * GIB


def test_each_device_has_a_column_of_its_own() -> None:
    """GPUs come first; a name that frees nothing there has zero, or a sentence."""
    release = Release(
        (
            Freeable("errors", ("a", "b", "c", "d"), {"cpu": int(GIB)}),
            Freeable("outputs", (), {"cuda:1": int(2 * GIB)}),
            Freeable("x", (), {"cuda:2": 0}),
        ),
        {"cpu": int(GIB), "cuda:1": int(2.5 * GIB)},
        objects=1,
    )
    bundle = release_bundle(release)
    lines = [" ".join(line.split()) for line in bundle["text/plain"].splitlines()[:8]]

    assert [one for one in lines if "\u2500" not in one] == [
        "could be freed cuda:1 cuda:2 cpu",
        "errors 0.00 MiB 0.00 MiB 1.00 GiB",
        "a, b, c, d",
        "outputs 2.00 GiB 0.00 MiB 0.00 MiB",
        "x 0.00 MiB 0.00 MiB 0.00 MiB",
        "nothing held only here",
        "total 2.50 GiB 0.00 MiB 1.00 GiB",
    ]
    assert "total" not in release_bundle(replace(release, items=release.items[:1]))["text/plain"]
    assert "memory" in release_bundle(Release((Freeable("x", (), {}),), {}))["text/plain"]


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ([("cuda:0", 5, 2)], ["cuda:0: freed 3.00 of 5.00 GiB."]),
        ([("cuda:0", 5, 6)], ["cuda:0: freed 0.00 of 5.00 GiB."]),
        ([("cuda:0", 5, 2), ("cpu", 3, 3)], ["cuda:0: freed 3.00 of 5.00 GiB."]),
        (
            [("cpu", 3, 2), ("cuda:0", 5, 2)],
            ["cuda:0: freed 3.00 of 5.00 GiB.", "cpu: freed 1.00 of 3.00 GiB."],
        ),
        ([("cuda:0", 0, 0), ("cpu", 3, 3)], ["cpu: freed 0.00 of 3.00 GiB."]),
        ([("cuda:0", math.nan, 2), ("cpu", 3, 2)], ["cpu: freed 1.00 of 3.00 GiB."]),
        ([("cuda:0", 0, 2)], ["cuda:0: freed 0.00 of 0.00 MiB."]),
    ],
)
def test_used_devices_are_listed(changes: list[tuple[str, float, float]], lines: list[str]) -> None:
    """Freed bytes are never below zero; the host is listed if it has changed or is the only device."""
    measured = tuple(
        Change(device, "allocated", "allocated", before * GIB, after * GIB)
        for device, before, after in changes
    )
    text = release_bundle(Release((), {}, done=True, changes=measured))["text/plain"]

    assert [line for line in text.splitlines() if "freed" in line] == lines


def test_predicted_bytes_that_were_not_freed_are_explained() -> None:
    """An allocator may keep more than a hundred MiB of what was predicted."""
    change = Change("cpu", "allocated", "private memory", 700 * MIB, 600 * MIB)
    texts = [
        release_bundle(Release((), {"cpu": int(mib * MIB)}, done=True, changes=(change,)))[
            "text/plain"
        ]
        for mib in (250, 101)
    ]

    assert "150.0 MiB less than predicted: an allocator may keep it" in texts[0]
    assert "predicted" not in texts[1]


def test_memory_that_malloc_keeps_is_noted() -> None:
    """The note says how to return it; there is none for a few MiB or an unknown figure."""
    texts = [kept_text({"cached": mib * MIB}.__getitem__) for mib in (534, 6, math.nan)]

    assert texts[0].startswith(
        "malloc keeps 534.0 MiB that nobody uses; %memholders --free garbage --trim"
    )
    assert texts[1:] == ["", ""]


def test_a_trim_also_returns_memory_of_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a trim does, which the user requests by name."""
    calls: list[str] = []
    pool = SimpleNamespace(release_unused=lambda: calls.append("release"))
    fake = SimpleNamespace(default_memory_pool=lambda: pool)
    monkeypatch.setitem(sys.modules, "pyarrow", fake)
    carry_out(parse_request(["garbage"], shell=None), PLAN, FakeAllocator())
    assert calls == []
    carry_out(parse_request(["garbage"], shell=None, trim=True), PLAN, FakeAllocator())
    assert calls == ["release"]


def test_a_search_that_ended_early_says_so() -> None:
    """Where the search was cut short, the last line says that its figures are not certain."""
    bounded = Release((), {}, bound="the search ended early, after 10 objects", objects=10)
    assert release_bundle(bounded)["text/plain"].endswith(
        "The search ended early, after 10 objects, so the sizes are not certain."
    )


@pytest.mark.parametrize(
    ("name", "places"),
    [("model", {"model"}), ("_", {"_", "Out[3]", "_3"})],
    ids=["variable", "output"],
)
def test_a_name_frees_every_place_of_its_object(name: str, places: set[str]) -> None:
    """A variable has one place, the last output all those in which IPython keeps it."""
    hook = SimpleNamespace(_=[1], __="", ___="")
    namespace = {"_oh": {3: hook._}, "_": hook._, "_3": hook._, "__": "", "___": "", "model": [2]}
    namespace["Out"] = namespace["_oh"]
    shell: Any = SimpleNamespace(user_ns=namespace, user_ns_hidden={"_": hook._}, displayhook=hook)
    (slots,) = parse_request([name], shell=shell).items.values()

    assert {slot.name for slot in slots} >= places
    assert all(slot.value() == ([2] if name == "model" else [1]) for slot in slots)
