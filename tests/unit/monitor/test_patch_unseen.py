"""What is wrapped cannot tell: whatever asks for its caller gets the user's code."""

from __future__ import annotations

import inspect
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

from hfmem_widget import follow, span, watch
from hfmem_widget.monitor.on_import import WhenImported
from hfmem_widget.monitor.patch import restore, surround
from hfmem_widget.sources.torch_cuda import CudaAllocator
from tests.fakes.torch_cuda import FakeAllocator, FakeTorch
from tests.unit.sources.conftest import pass_on

HERE = Path(__file__).name


def of_a_library(*_: object, fails: bool = False) -> list[str]:
    """Return what a library says of its caller: three times where that is."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=2)
    if fails:
        raise ValueError
    caller = sys._getframe(1)
    return [
        seen[0].filename,
        caller.f_code.co_filename,
        inspect.stack()[1].filename,
        caller.f_code.co_name,
    ]


class Library:
    method = of_a_library
    of_class: Any = classmethod(of_a_library)
    of_nobody = staticmethod(of_a_library)


library = ModuleType("library")
library.function = of_a_library  # type: ignore[attr-defined]  # made here


@contextmanager
def around(*_: object) -> Iterator[None]:
    yield


PLACES: dict[str, tuple[Any, Any]] = {
    "method": (Library, Library()),
    "of_class": (Library, Library),
    "of_nobody": (Library, Library),
    "function": (library, library),
}
"""Where each is surrounded, and on what it is called."""


@pytest.fixture(params=[True, False], ids=["watched", "let alone"])
def surrounded(request: pytest.FixtureRequest) -> Iterator[None]:
    """Surround them all."""
    for name, (owner, _) in PLACES.items():
        surround(owner, name, around, unless=lambda: not request.param)
    yield
    for name, (owner, _) in PLACES.items():
        restore(owner, name)


@pytest.mark.usefixtures("surrounded")
@pytest.mark.parametrize("name", PLACES)
def test_a_surrounded_function_is_called_by_the_user(name: str) -> None:
    """Warnings point to the user's line, and `inspect.stack` and `sys._getframe` have the user's frame."""
    found = getattr(PLACES[name][1], name)()

    assert [Path(path).name for path in found[:3]] == [HERE, HERE, HERE]
    assert found[3] == "test_a_surrounded_function_is_called_by_the_user"


@pytest.mark.usefixtures("surrounded")
@pytest.mark.parametrize("name", PLACES)
def test_an_error_has_the_users_frames_alone(name: str) -> None:
    """Its traceback is that of a call without us."""
    with pytest.raises(ValueError) as raised:  # noqa: PT011  (without a text)
        getattr(PLACES[name][1], name)(fails=True)

    frames = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert frames == ["test_an_error_has_the_users_frames_alone", "of_a_library"]


@pytest.mark.usefixtures("surrounded")
@pytest.mark.parametrize("fails", [True, False])
def test_a_profiler_hears_of_as_many_calls_as_returns(fails: bool) -> None:
    """Else it would put the time of the user's functions down to others."""
    heard: Counter[tuple[str, str]] = Counter()

    def hear(frame: FrameType, event: str, _argument: object) -> None:
        heard[frame.f_code.co_qualname, event] += 1

    library_object = Library()
    sys.setprofile(hear)
    try:
        library_object.method(fails=fails)
    except ValueError:
        pass
    finally:
        sys.setprofile(None)

    names = {name for name, event in heard if event in {"call", "return"}}
    assert any("surrounded" in name for name in names)
    assert all(heard[name, "call"] == heard[name, "return"] for name in names)


@pytest.mark.parametrize("decorator", [span("mine"), watch(quiet=True), follow])
def test_what_is_decorated_is_called_by_the_user(decorator: Callable[..., Any]) -> None:
    """A function that warns of its caller's line goes on doing so."""
    found = decorator(of_a_library)()

    assert [Path(path).name for path in found] == [
        HERE,
        HERE,
        HERE,
        "test_what_is_decorated_is_called_by_the_user",
    ]


def test_the_memory_counters_of_torch_are_called_by_the_user() -> None:
    """Where they are wrapped and the call is not for us, the original's caller is the user's."""
    torch: Any = FakeTorch(FakeAllocator())
    torch._C._cuda_memoryStats = of_a_library
    allocator = CudaAllocator({"torch": torch})
    allocator.install(pass_on, pass_on)
    found = torch._C._cuda_memoryStats("none of ours")
    allocator.uninstall()

    assert [Path(path).name for path in found[:3]] == [HERE, HERE, HERE]


def test_a_module_that_is_waited_for_is_imported_by_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its warning that it is deprecated points to the line that imports it."""
    text = "import warnings\nwarnings.warn('old module', DeprecationWarning, stacklevel=2)\n"
    (tmp_path / "deprecated_here.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    waiting = WhenImported({"deprecated_here": lambda _module: None})
    waiting.begin()
    try:
        with pytest.warns(DeprecationWarning, match="old module") as seen:
            import deprecated_here  # type: ignore[import-not-found]  # noqa: F401
    finally:
        waiting.end()
        sys.modules.pop("deprecated_here", None)

    assert Path(seen[0].filename).name == HERE
