"""Where a kernel keeps errors and outputs by itself, so that they can be found, and let go."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from hfmem_widget.sources.heap.referents import fields_of

GONE = object()
"""What stands for no entry at all."""

LAST_OUTPUTS = re.compile(r"_{1,3}|_\d+")

_LAST_ERROR = ("last_exc", "last_value", "last_traceback", "last_type")
_OF_THE_DEBUGGER = ("botframe", "curframe", "stack")


class Slot(NamedTuple):
    """A place that keeps one object.

    Attributes
    ----------
    name : str
        What people call it.
    fields : dict
        A namespace, or an object's own fields.
    key : object
        Where in it.
    empty : object
        What stands there when nothing is kept; `GONE` where the key is not there then.
    """

    name: str
    fields: dict[Any, Any]
    key: Any
    empty: object = GONE

    def value(self) -> Any:
        """Return what is kept, or None."""
        return self.fields.get(self.key)

    def is_empty(self) -> bool:
        """Return whether nothing is kept."""
        value = self.fields.get(self.key)
        return value is None or value is self.empty


def errors_kept(shell: Any = None) -> list[Slot]:
    """Return where the last error is kept: by Python, by IPython, and by its debugger.

    Parameters
    ----------
    shell : InteractiveShell, optional
    """
    slots = [Slot(f"sys.{name}", vars(sys), name) for name in _LAST_ERROR]
    shown = fields_of(getattr(shell, "InteractiveTB", None))
    slots += [
        Slot(f"IPython's {name}", shown, name, None) for name in ("tb", "etb", "evalue", "etype")
    ]
    syntax = fields_of(getattr(shell, "SyntaxTB", None))
    slots += [Slot("IPython's last syntax error", syntax, "last_syntax_error", None)]
    debugger = fields_of(shown.get("pdb"))
    slots += [Slot("IPython's debugger", debugger, name, None) for name in _OF_THE_DEBUGGER]
    result = fields_of(getattr(shell, "last_execution_result", None))
    slots += [
        Slot("IPython's last result", result, name, None)
        for name in ("error_in_exec", "error_before_exec")
    ]
    return [slot for slot in slots if not slot.is_empty()]


def outputs_kept(shell: Any = None) -> list[Slot]:
    """Return where outputs are kept: ``Out``, ``_``, ``__``, ``___``, ``_12``, and IPython's copies of these.

    A variable ``_`` that the user has assigned is the user's, as IPython sees it too.
    """
    if shell is None:
        return []
    history = shell.user_ns.get("_oh")
    history = history if type(history) is dict else {}
    hook = fields_of(shell.displayhook)
    hidden = shell.user_ns_hidden
    slots = [Slot(f"Out[{number}]", history, number) for number in history]
    for key, value in list(shell.user_ns.items()):
        if type(key) is str and LAST_OUTPUTS.fullmatch(key):
            number = key[1:]
            kept = [hidden.get(key, GONE), hook.get(key, GONE)]
            kept += [history.get(int(number), GONE)] if number.isdecimal() else []
            if any(one is value for one in kept):
                slots.append(Slot(key, shell.user_ns, key, GONE if number.isdecimal() else ""))
    for fields in (hidden, hook):
        slots += [
            Slot(f"IPython's {key}", fields, key, GONE if key[1:].isdecimal() else "")
            for key in list(fields)
            if type(key) is str and LAST_OUTPUTS.fullmatch(key)
        ]
    result = fields_of(getattr(shell, "last_execution_result", None))
    slots.append(Slot("IPython's last result", result, "result", None))
    return [slot for slot in slots if not slot.is_empty()]


def beside_the_variables(shell: Any = None) -> Iterator[Slot]:
    """Yield where outputs are kept that no variable of the same name tells of."""
    for slot in outputs_kept(shell):
        is_told = slot.fields is shell.user_ns or slot.name.startswith("Out[")
        namesake = "_" if slot.key == "result" else slot.key
        if not is_told and shell.user_ns.get(namesake) is not slot.value():
            yield slot
