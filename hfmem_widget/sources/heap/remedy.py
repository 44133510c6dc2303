"""How to free what a name keeps, which depends on the kind of name."""

from __future__ import annotations

import re

from hfmem_widget.sources.heap.kept import LAST_OUTPUTS
from hfmem_widget.sources.heap.model import Holder
from hfmem_widget.sources.heap.paths import OPEN_FIGURES, UNNAMED

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
