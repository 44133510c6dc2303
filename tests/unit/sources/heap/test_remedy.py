"""What lets go of memory depends on what kind of name keeps it: a table of holders and remedies."""

from __future__ import annotations

from typing import Any

import pytest

from hfmem_widget.analysis.left_behind import LeftBehind
from hfmem_widget.features.leaks.companion import with_holder
from hfmem_widget.features.leaks.who_added import Before, named
from hfmem_widget.session import Finding
from hfmem_widget.sources.heap.model import Holder, Holders
from hfmem_widget.sources.heap.remedy import remedy
from hfmem_widget.text import GIB

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


@pytest.mark.parametrize(("path", "kind", "graphs", "said"), CASES)
def test_the_remedy_is_for_the_kind_of_holder(
    path: str, kind: str, graphs: bool, said: str
) -> None:
    """An error or an output goes by a word; only what the user's own code keeps can be kept detached.

    The card of a cell says the same of what is left behind, and nothing that does not apply.
    """
    kept = holder(path, kind, graphs=graphs)
    left = LeftBehind("cuda:0", 0.0, GIB, 80 * GIB, dict.fromkeys(
        ("weights", "buffers", "gradients", "optimizer"), 0.0))  # fmt: skip
    finding = named(left, Holders((kept,)), Before(), 1)
    assert finding is not None
    for told in (remedy(kept), " ".join(finding.advice)):
        assert [one for one in REMEDIES if one in told] == ([said] if said else [])


@pytest.mark.parametrize(
    ("path", "graphs", "said"),
    [
        ("sys.last_value \u2192 f() \u2192 x[0..59]", True, ERRORS),
        ("Out[0..59]", False, OUTPUTS),
        ("losses[0..59]", True, VALUES),
        ("losses[0..59]", False, "keeps growing"),
    ],
)
def test_a_leak_is_advised_by_it(path: str, graphs: bool, said: str) -> None:
    """So does the finding of a leak."""
    grown = Finding("leak", "warn", "Grows.", {"grown": round(GIB), "device": "cuda:0"}, (), 1)
    finding = with_holder(grown, Holders((holder(path, "tensors", graphs=graphs),)), NOTHING_BEFORE)
    assert said in finding.advice[0]
