"""Where a kernel keeps errors and outputs by itself, and what lets go of each kind of name."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from hfmem_widget.analysis.left_behind import LeftBehind
from hfmem_widget.features.leaks.companion import with_holder
from hfmem_widget.features.leaks.who_added import Before, named
from hfmem_widget.session import Finding
from hfmem_widget.sources.heap.model import Holder, Holders
from hfmem_widget.sources.heap.roots import (
    Precedence,
    errors_kept,
    kernel_roots,
    outputs_kept,
    remedy,
)
from hfmem_widget.text import GIB


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
    shell.user_ns["_oh"][number] = value
    for fields in (shell.user_ns, shell.user_ns_hidden):
        fields |= {f"_{number}": value, "_": value}
    shell.displayhook._ = value
    shell.last_execution_result.result = value


def names(slots: list[Any]) -> list[str]:
    return [slot.name for slot in slots]


def test_a_fresh_shell_keeps_nothing(shell: SimpleNamespace) -> None:
    """A fresh shell, or no shell at all, keeps neither errors nor outputs."""
    assert errors_kept(shell) == []
    assert outputs_kept(shell) == []
    assert outputs_kept(None) == []


def test_errors_are_found_anywhere(shell: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
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
    """A user's own `_` is no output, nor is a variable that looks like a numbered one."""
    output(shell, 3, [1])
    shell.user_ns |= {"_": [2], "_99": [3]}

    assert [slot.key for slot in outputs_kept(shell) if slot.fields is shell.user_ns] == ["_3"]


def errors_and_outputs(shell: SimpleNamespace) -> set[str]:
    """Return the names of roots but those of functions that run, this test's among them."""
    return {root.name for root in kernel_roots(shell) if root.precedence < Precedence.RUNNING}


def test_a_copy_that_no_variable_tells_of_is_a_root(shell: SimpleNamespace) -> None:
    """After ``del _3; Out.clear()`` IPython's copies are roots; before, the variables name the output."""
    output(shell, 3, [1])
    assert errors_and_outputs(shell) == set()
    shell.user_ns["_oh"].clear()
    del shell.user_ns["_3"], shell.user_ns["_"]

    assert errors_and_outputs(shell) == {"IPython's _", "IPython's _3", "IPython's last result"}


ERRORS, OUTPUTS, VALUES, GRADIENTS, NOTHING = (
    "%memholders --free errors", "%memholders --free outputs", ".detach()", "zero_grad()", ""
)  # fmt: skip
REMEDIES = (ERRORS, OUTPUTS, VALUES, GRADIENTS, "%memholders --free all")

CASES = [
    # path, kind, whether it is kept through graphs, what lets go of it
    ("the error of cell [4] \u2192 train() \u2192 loss", "tensors", True, ERRORS),
    ("sys.last_value \u2192 step() \u2192 losses[0..59]", "tensors", True, ERRORS),
    ("sys.last_exc.__context__", "tensors", False, ERRORS),
    ("IPython's debugger", "tensors", False, ERRORS),
    ("IPython's last result", "tensors", True, "%memholders --free all"),
    ("Out[12]", "tensors", True, OUTPUTS),
    ("_", "tensors", False, OUTPUTS),
    ("__[0]", "tensors", True, OUTPUTS),
    ("_12", "tensors", True, OUTPUTS),
    ("IPython's _7", "tensors", True, OUTPUTS),
    ("_cache['a']", "tensors", True, VALUES),
    ("Output", "tensors", True, VALUES),
    ("loss", "tensors", True, VALUES),
    ("losses[0..99]", "tensors", True, VALUES),
    ("generator \u2192 outputs[0..9]", "tensors", True, VALUES),
    ("model", "gradients", False, GRADIENTS),
    ("x", "tensors", False, NOTHING),
    ("closure \u2192 kept", "tensors", False, NOTHING),
    ("model", "weights", False, NOTHING),
]  # fmt: skip


def holder(path: str, kind: Any, *, graphs: bool) -> Holder:
    size = round(GIB)
    return Holder(
        path, kind, "cuda:0", size, 60, (4,), "float32",
        graph_bytes=size if graphs else 0, graphs=60 if graphs else 0,
    )  # fmt: skip


NOTHING_BEFORE = Before(Holders(()))
"""Nothing was held when the watch began."""


@pytest.mark.parametrize(("path", "kind", "graphs", "advice"), CASES)
def test_the_remedy_fits_the_holders_kind(path: str, kind: str, graphs: bool, advice: str) -> None:
    """Errors and outputs are freed by a word, the user's graphs by `.detach()`; the card says the same."""
    kept = holder(path, kind, graphs=graphs)
    left_behind = LeftBehind("cuda:0", 0.0, GIB, 80 * GIB, dict.fromkeys(
        ("weights", "buffers", "gradients", "optimizer"), 0.0))  # fmt: skip
    finding = named(left_behind, Holders((kept,)), Before(), 1)
    assert finding is not None
    for text in (remedy(kept), " ".join(finding.advice)):
        assert [one for one in REMEDIES if one in text] == ([advice] if advice else [])


@pytest.mark.parametrize(
    ("path", "graphs", "advice"),
    [
        ("sys.last_value \u2192 f() \u2192 x[0..59]", True, ERRORS),
        ("Out[0..59]", False, OUTPUTS),
        ("losses[0..59]", True, VALUES),
        ("losses[0..59]", False, "keeps growing"),
    ],
)
def test_a_leak_has_the_advice_for_its_holder(path: str, graphs: bool, advice: str) -> None:
    """The finding of a leak has the advice for its kind of holder."""
    grown = Finding("leak", "warn", "Grows.", {"grown": round(GIB), "device": "cuda:0"}, (), 1)
    finding = with_holder(grown, Holders((holder(path, "tensors", graphs=graphs),)), NOTHING_BEFORE)
    assert advice in finding.advice[0]
