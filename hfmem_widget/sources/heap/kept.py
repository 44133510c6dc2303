"""Where Python and IPython keep errors and outputs, and how to free what a name keeps."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from hfmem_widget.sources.heap.model import Holder
from hfmem_widget.sources.heap.paths import OPEN_FIGURES, UNNAMED
from hfmem_widget.sources.heap.referents import fields_of

GONE = object()
"""Stands for a missing key."""

LAST_OUTPUTS = re.compile(r"_{1,3}|_\d+")

_LAST_ERROR = ("last_exc", "last_value", "last_traceback", "last_type")
_OF_THE_TRACEBACK = ("tb", "etb", "evalue", "etype")
_OF_THE_DEBUGGER = ("botframe", "curframe", "stack")
_LAST_RESULT = "IPython's last result"


class Slot(NamedTuple):
    """A field of a namespace or an object that keeps one object, with a name for people."""

    name: str
    fields: dict[Any, Any]
    key: Any
    empty: object = GONE
    """The value of an empty slot; `GONE` if an empty slot has no key."""

    def value(self) -> Any:
        """Return the kept object, or None."""
        return self.fields.get(self.key)

    def is_empty(self) -> bool:
        """Return whether nothing is kept."""
        return self.value() is None or self.value() is self.empty


def errors_kept(shell: Any = None) -> list[Slot]:
    """Return the slots that keep the last error: Python's, the IPython shell's, and its debugger's."""
    traceback, syntax, result = (
        fields_of(getattr(shell, name, None))
        for name in ("InteractiveTB", "SyntaxTB", "last_execution_result")
    )
    debugger = fields_of(traceback.get("pdb"))
    slots = [
        *(Slot(f"sys.{key}", vars(sys), key) for key in _LAST_ERROR),
        *(Slot(f"IPython's {key}", traceback, key, None) for key in _OF_THE_TRACEBACK),
        Slot("IPython's last syntax error", syntax, "last_syntax_error", None),
        *(Slot("IPython's debugger", debugger, key, None) for key in _OF_THE_DEBUGGER),
        *(Slot(_LAST_RESULT, result, key, None) for key in ("error_in_exec", "error_before_exec")),
    ]
    return [slot for slot in slots if not slot.is_empty()]


def outputs_kept(shell: Any = None) -> list[Slot]:
    """Return the slots that keep outputs: ``Out``, ``_12``, ``_`` unless the user's, IPython's copies."""
    if shell is None:
        return []
    history = shell.user_ns.get("_oh")
    history = history if type(history) is dict else {}
    hook = fields_of(shell.displayhook)
    hidden = shell.user_ns_hidden
    slots = [Slot(f"Out[{number}]", history, number) for number in history]
    for fields, whose in ((shell.user_ns, ""), (hidden, "IPython's "), (hook, "IPython's ")):
        for key, value in list(fields.items()):
            if type(key) is str and LAST_OUTPUTS.fullmatch(key):
                number = int(key[1:]) if key[1:].isdecimal() else None
                copies = hidden.get(key, GONE), hook.get(key, GONE), history.get(number, GONE)
                if whose or any(copy is value for copy in copies):
                    slots.append(Slot(f"{whose}{key}", fields, key, "" if number is None else GONE))
    result = fields_of(getattr(shell, "last_execution_result", None))
    slots.append(Slot(_LAST_RESULT, result, "result", None))
    return [slot for slot in slots if not slot.is_empty()]


def outputs_without_variable(shell: Any = None) -> Iterator[Slot]:
    """Yield the slots of outputs that no variable of the same name holds."""
    for slot in outputs_kept(shell):
        is_variable = slot.fields is shell.user_ns or slot.name.startswith("Out[")
        namesake = "_" if slot.key == "result" else slot.key
        if not is_variable and shell.user_ns.get(namesake) is not slot.value():
            yield slot


OF_AN_ERROR = re.compile(
    r"the error of cell \[\d+\]|sys\.last_\w+|IPython's (?:tb|etb|evalue|etype|debugger|last syntax)"
)
_OUTPUT = re.compile(rf"Out\b|(?:IPython's )?(?:{LAST_OUTPUTS.pattern})(?!\w)")

_BEYOND_NAMES = {
    OPEN_FIGURES: "plt.close(figure) closes one of them, plt.close('all') all.",
    UNNAMED: "They may wait for the garbage collector: %memholders --free garbage collects them then.",
}


def beyond_names(row: Holder) -> str:
    """Return how to free what no name of the notebook leads to, as a sentence; empty where one does."""
    return next((remedy for path, remedy in _BEYOND_NAMES.items() if row.path.startswith(path)), "")


def remedy(row: Holder) -> str:
    """Return how to free what a row keeps, as a sentence; empty where its name says enough."""
    if OF_AN_ERROR.match(row.path):
        return "%memholders --free errors frees the error and what it holds."
    if row.path.startswith("IPython's last result"):
        return "%memholders --free all frees the last result, whether error or output."
    if _OUTPUT.match(row.path):
        return "%memholders --free outputs frees it; a semicolon at the end of the line prevents the output."
    if row.kind == "gradients":
        return f"zero_grad() frees the gradients in {row.path}."
    if row.is_of_graphs:
        what = "a detached tensor" if row.graphs == 1 else "detached tensors"
        return (
            f"If only values are needed, store {what} in {row.path} (.detach(), or .item() for one number): "
            "a tensor with a graph holds everything that its backward pass needs."
        )
    return beyond_names(row)
