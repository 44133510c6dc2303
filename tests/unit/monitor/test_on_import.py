"""Something happens to a module as soon as it is imported, and nothing imports it for that."""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import pytest

from hfmem_widget.monitor.on_import import WhenImported

NAME = "hfmem_test_module"


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have a module that can be imported, and forget it afterwards."""
    (tmp_path / f"{NAME}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop(NAME, None)


@contextmanager
def awaited(action: Callable[[ModuleType], object], name: str = NAME) -> Iterator[None]:
    """Wait for a module, and act on it when it has been imported."""
    hook = WhenImported({name: action})
    hook.begin()
    try:
        yield
    finally:
        hook.end()


@pytest.fixture
def imports() -> Iterator[list[int]]:
    """Return a list of the values of each import."""
    values: list[int] = []
    with awaited(lambda module: values.append(module.value)):
        yield values


def test_it_acts_once_the_module_has_been_executed(imports: list[int]) -> None:
    """The action runs once, on the complete module, which waiting does not import."""
    assert NAME not in sys.modules
    for _ in range(2):
        importlib.import_module(NAME)

    assert imports == [1]


def test_it_acts_at_once_on_imported_modules() -> None:
    """A module that is imported already is not awaited."""
    importlib.import_module(NAME)
    names: list[str] = []
    with awaited(lambda module: names.append(module.__name__)):
        assert names == [NAME]


def test_the_module_keeps_its_loader(imports: list[int]) -> None:
    """Its source can be found as ever, and it can be loaded again."""
    module = importlib.import_module(NAME)
    loader = module.__loader__

    assert "exec_module" not in vars(loader)
    assert loader.get_source(NAME) == "value = 1\n"  # type: ignore[union-attr]  # a file's loader
    importlib.reload(module)
    assert imports == [1, 1]


def test_ending_removes_it_from_the_import_system() -> None:
    """After the end, the import system is as before, and imports have no effect."""
    before, action = list(sys.meta_path), Mock()
    with awaited(action):
        pass
    importlib.import_module(NAME)

    assert sys.meta_path == before
    assert not action.called


def test_a_fault_of_ours_does_not_break_the_import(capsys: pytest.CaptureFixture[str]) -> None:
    """The module is imported, and the fault is one line on stderr."""
    with awaited(Mock(side_effect=RuntimeError("broken"))):
        assert importlib.import_module(NAME).value == 1

    assert "broken" in capsys.readouterr().err


def test_a_module_that_is_not_there_is_still_not_found() -> None:
    """The error is Python's own."""
    with awaited(print, "hfmem_no_such_module"), pytest.raises(ModuleNotFoundError):
        importlib.import_module("hfmem_no_such_module")


def test_an_awaited_module_is_imported_by_the_user(tmp_path: Path) -> None:
    """Its deprecation warning points to the importing line."""
    text = "import warnings\nwarnings.warn('old module', DeprecationWarning, stacklevel=2)\n"
    (tmp_path / f"{NAME}.py").write_text(text)
    with awaited(print), pytest.warns(DeprecationWarning, match="old module") as warnings:
        import hfmem_test_module  # type: ignore[import-not-found]  # noqa: F401

    assert warnings[0].filename == __file__


def test_an_old_finder_is_passed_over(imports: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Old copies of six put one there, and import itself leaves it out."""
    first, *others = sys.meta_path
    monkeypatch.setattr(sys, "meta_path", [first, object(), *others])
    importlib.import_module(NAME)

    assert imports == [1]


def test_several_may_wait_for_one_module(imports: list[int]) -> None:
    """Each acts once, in the order in which they began to wait."""
    counts: list[int] = []
    with awaited(lambda _: counts.append(len(imports))):
        importlib.import_module(NAME)

    assert imports == [1]
    assert counts == [1]


def test_other_names_need_no_guard(imports: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """In every step, accelerate asks twice for a module that is not there; the guard takes 13 µs."""
    guards: list[str] = []
    monkeypatch.setattr("hfmem_widget.guard.interrupts_deferred.__enter__", guards.append)

    assert importlib.util.find_spec("hfmem_no_such_module") is None
    assert guards == []
    assert imports == []
