"""Where a kernel keeps errors and outputs by itself: all places are known, and a user's own is none."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from hfmem_widget.sources.heap.kept import errors_kept, outputs_kept
from hfmem_widget.sources.heap.roots import Precedence, kernel_roots


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stand in for an IPython shell that keeps nothing yet."""
    for name in ("last_exc", "last_value", "last_traceback", "last_type"):
        monkeypatch.delattr(sys, name, raising=False)
    hook = SimpleNamespace(_="", __="", ___="")
    history: dict[int, Any] = {}
    return SimpleNamespace(
        InteractiveTB=SimpleNamespace(tb=None, pdb=None),
        SyntaxTB=SimpleNamespace(last_syntax_error=None),
        last_execution_result=SimpleNamespace(result=None, error_in_exec=None),
        displayhook=hook,
        user_ns={"_oh": history, "Out": history, "_": "", "__": "", "___": ""},
        user_ns_hidden={"_": "", "__": "", "___": ""},
    )


def output(shell: SimpleNamespace, number: int, value: object) -> None:
    """Keep an output as IPython does."""
    shell.user_ns["_oh"][number] = value
    for fields in (shell.user_ns, shell.user_ns_hidden):
        fields |= {f"_{number}": value, "_": value}
    shell.displayhook._ = value
    shell.last_execution_result.result = value


def names(slots: list[Any]) -> list[str]:
    return [slot.name for slot in slots]


def test_who_keeps_nothing_has_no_places(shell: SimpleNamespace) -> None:
    """A fresh shell, and no shell at all, keep neither errors nor outputs."""
    assert errors_kept(shell) == []
    assert outputs_kept(shell) == []
    assert outputs_kept(None) == []


def test_an_error_is_found_wherever_it_is(
    shell: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All places in which Python, IPython and its debugger keep an error are found."""
    error = ValueError()
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    shell.InteractiveTB.tb = shell.last_execution_result.error_in_exec = error
    shell.InteractiveTB.pdb = SimpleNamespace(botframe=None, curframe=sys._getframe(), stack=[])
    shell.SyntaxTB.last_syntax_error = error

    assert names(errors_kept(shell)) == [
        "sys.last_value",
        "IPython's tb",
        "IPython's last syntax error",
        "IPython's debugger",
        "IPython's debugger",
        "IPython's last result",
    ]


def test_an_output_is_found_wherever_it_is(shell: SimpleNamespace) -> None:
    """All names and places in which IPython keeps an output are found."""
    output(shell, 3, [1])

    assert names(outputs_kept(shell)) == [
        "Out[3]",
        "_",
        "_3",
        "IPython's _",
        "IPython's _3",
        "IPython's _",
        "IPython's last result",
    ]


def test_a_users_own_underscore_is_no_output(shell: SimpleNamespace) -> None:
    """Nor is a variable that looks like a numbered one."""
    output(shell, 3, [1])
    shell.user_ns |= {"_": [2], "_99": [3]}

    assert [slot.key for slot in outputs_kept(shell) if slot.fields is shell.user_ns] == ["_3"]


def errors_and_outputs(shell: SimpleNamespace) -> set[str]:
    """Return the names of roots but those of functions that run, this test's among them."""
    return {root.name for root in kernel_roots(shell) if root.precedence < Precedence.RUNNING}


def test_a_copy_that_no_variable_tells_of_is_a_root(shell: SimpleNamespace) -> None:
    """As after ``del _3; Out.clear()``; as long as there is a variable, that is named."""
    output(shell, 3, [1])
    assert errors_and_outputs(shell) == set()
    shell.user_ns["_oh"].clear()
    del shell.user_ns["_3"], shell.user_ns["_"]

    assert errors_and_outputs(shell) == {"IPython's _", "IPython's _3", "IPython's last result"}
