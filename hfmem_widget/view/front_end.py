"""The shell that runs a cell, the host whose page shows its outputs, and the abilities of that page."""

import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from hfmem_widget.analysis.cell import Cell

_BY_VARIABLE = {
    "VSCODE_PID": "VS Code",
    "VSCODE_CWD": "VS Code",
    "DATABRICKS_RUNTIME_VERSION": "Databricks",
    "KAGGLE_KERNEL_RUN_TYPE": "Kaggle",
}
_BY_MODULE = {"google.colab": "Colab", "marimo": "marimo"}


def host_name(environ: Mapping[str, str] = os.environ) -> str:
    """Return the host whose page shows the outputs, such as ``"VS Code"``; empty if unknown."""
    # Also in the kernel of a remote server, whose environment VS Code has not made.
    if "__vsc_ipynb_file__" in getattr(running_shell(), "user_ns", {}):
        return "VS Code"
    hosts = [name for module, name in _BY_MODULE.items() if module in sys.modules]
    hosts += [name for variable, name in _BY_VARIABLE.items() if variable in environ]
    return next(iter(hosts), "")


def serves_labextensions() -> bool:
    """Return whether a server brings the labextension to the page; False for hosts with their own page."""
    return not host_name()


def enable_widgets_in_colab() -> None:
    """Make Colab show third-party widgets; on the thread of a cell.

    Colab registers a hook for that, once, and ipykernel keeps hooks for each thread. anywidget would have it
    registered with its first widget, on a thread of ours, and the hook would end with that thread.
    """
    output = sys.modules.get("google.colab.output")
    if output is not None:
        _enable_widgets(output)


@cache  # as in anywidget: code that turns it off later is not overruled
def _enable_widgets(output: ModuleType) -> None:
    output.enable_custom_widget_manager()


def finds_anywidget() -> bool:
    """Return whether anywidget's own script is where VS Code and the classic notebook look for it."""
    from jupyter_core.paths import jupyter_path

    scripts = (Path(each) / "anywidget" / "index.js" for each in jupyter_path("nbextensions"))
    return any(map(Path.exists, scripts))


def replaces_outputs(request: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Return whether updates of displays are shown; a terminal, which can ask for input, shows none."""
    can_ask = request.get("content", {}).get("allow_stdin")
    return not (_has_no_page(request, environ) and can_ask)


def draws_widgets(request: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Return whether a page may draw the widgets of an execute request's cell.

    A program that runs notebooks unattended (nbclient, papermill, ``jupyter execute``) has no page, and saves
    each widget's state in the notebook. Voilà runs cells in the same way, for a page that it serves.
    """
    is_served = environ.get("SERVER_SOFTWARE", "").startswith("voila")
    return is_served or not _has_no_page(request, environ)


def _has_no_page(request: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Return whether a request seems to come from a program without a page; no message says so outright.

    It is a Python client, which names the user and leaves the metadata empty, while pages send the cell's id;
    its kernel was not started for a server's notebook; and no host with a page is known.
    """
    return (
        bool(request.get("header", {}).get("username"))
        and not request.get("metadata")
        and not host_name(environ)
        and "JPY_SESSION_NAME" not in environ
    )


def running_shell() -> Any:
    """Return the IPython shell this code runs in, or None."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_ipython() if get_ipython is not None else None


def magics_of(shell: Any) -> Any:
    """Return the magics of a shell that has loaded the extension, else None."""
    manager = getattr(shell, "magics_manager", None)
    return None if manager is None else manager.registry.get("MemwatchMagics")


def running_cell() -> Cell | None:
    """Return the cell that runs on this thread; None outside a notebook, or without the extension."""
    magics = magics_of(running_shell())
    cell: Cell | None = None if magics is None else magics.running_cell()
    return cell
