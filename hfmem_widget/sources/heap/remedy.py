"""What lets go of what a name keeps: it depends on what kind of name that is."""

from __future__ import annotations

import re

from hfmem_widget.sources.heap.kept import LAST_OUTPUTS
from hfmem_widget.sources.heap.model import Holder

_ERROR = re.compile(
    r"the error of cell \[\d+\]|sys\.last_\w+|IPython's (?:tb|etb|evalue|etype|debugger|last syntax)"
)
_OUTPUT = re.compile(rf"Out\b|(?:IPython's )?(?:{LAST_OUTPUTS.pattern})(?!\w)")
_EITHER = "IPython's last result"


def remedy(row: Holder) -> str:
    """Return how to let go of what a row keeps, as a sentence; empty where its name says enough.

    What the notebook keeps by itself goes by a word. Only what the user's own code keeps can be kept in
    another way: an error or an output has no ``.detach()``.
    """
    if _ERROR.match(row.path):
        return "%memfree errors lets go of the error and of what it keeps."
    if row.path.startswith(_EITHER):
        return "%memfree all lets go of the last result, an error or an output."
    if _OUTPUT.match(row.path):
        return "%memfree outputs lets go of it; with a semicolon at its end a line has no output."
    if row.kind == "gradients":
        return f"zero_grad() lets go of the gradients in {row.path}."
    if 2 * row.graph_bytes >= row.bytes > 0:
        what = "a detached tensor" if row.graphs == 1 else "detached tensors"
        return (
            f"If only values are needed, keep {what} in {row.path} (.detach(), or .item() of one number): "
            "a tensor with a graph keeps all that its backward pass needs."
        )
    return ""
