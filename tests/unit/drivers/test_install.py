"""Leaving everything alone again is done to the end, whatever fails on the way."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from hfmem_widget.drivers import install as attaching
from hfmem_widget.drivers import optimizers


def loaded_in(shell: Any) -> set[str]:
    loaded: set[str] = shell.extension_manager.loaded
    return loaded


def test_what_cannot_be_put_back_keeps_nothing_else_from_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fault with the optimizers is one line, and `generate` is restored all the same."""
    generation = ModuleType("transformers.generation.utils")
    mixin = type("GenerationMixin", (), {"generate": lambda _self: 1})
    vars(generation)["GenerationMixin"] = mixin
    monkeypatch.setitem(sys.modules, generation.__name__, generation)
    attaching.detach()
    original = vars(mixin)["generate"]
    attaching.attach()
    assert vars(mixin)["generate"] is not original
    with monkeypatch.context() as patched:
        patched.setattr(optimizers, "leave_optimizers", broken)
        attaching.detach()
    attaching.detach()

    assert vars(mixin)["generate"] is original
    assert capsys.readouterr().err.count("broken") == 1


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def broken(_: object) -> None:
    """Stand in for a part of the leaving that has a fault."""
    raise RuntimeError("broken")


@pytest.mark.parametrize("torch", [None, ModuleType("torch")], ids=["None", "an empty folder"])
def test_it_is_unloaded_where_something_else_is_called_torch(
    torch: ModuleType | None, shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extension can be unloaded and loaded again where a namesake of torch is imported."""
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "torch", torch)
        for _ in range(2):
            shell.run_cell("%load_ext hfmem_widget").raise_error()
            assert shell.find_cell_magic("memwatch") is not None
            shell.run_cell("%unload_ext hfmem_widget").raise_error()
            assert "hfmem_widget" not in loaded_in(shell)


@pytest.mark.parametrize("part", ["unregister", "memwatch.unregister"], ids=["all", "a part"])
def test_an_unloading_that_fails_is_one_line(
    part: str,
    shell: InteractiveShell,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The extension counts as unloaded; where a part fails, the other magics are gone all the same."""
    shell.run_cell("%load_ext hfmem_widget").raise_error()
    with monkeypatch.context() as patched:
        patched.setattr(f"hfmem_widget.magics.{part}", broken)
        shell.run_cell("%unload_ext hfmem_widget").raise_error()

    assert "hfmem_widget" not in loaded_in(shell)
    assert part == "unregister" or shell.find_line_magic("memfree") is None
    assert capsys.readouterr().err.count("broken") == 1
    shell.run_cell("%reload_ext hfmem_widget\n%unload_ext hfmem_widget").raise_error()
    assert shell.find_line_magic("memwatch") is None
