"""The shell that runs a cell, the host whose page shows its outputs, and what that page can do."""

from __future__ import annotations

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
    """Return the host whose page shows the outputs, such as ``"VS Code"``; empty where nothing names one."""
    # VS Code says so in a kernel of a remote server as well, whose environment it has not made.
    if "__vsc_ipynb_file__" in getattr(running_shell(), "user_ns", {}):
        return "VS Code"
    hosts = [name for module, name in _BY_MODULE.items() if module in sys.modules]
    hosts += [name for variable, name in _BY_VARIABLE.items() if variable in environ]
    return next(iter(hosts), "")


def serves_labextensions() -> bool:
    """Return False on hosts with a page of their own, to which no server brings the wheel's labextension."""
    return not host_name()


def enable_widgets_in_colab() -> None:
    """Have Colab show third-party widgets; on the thread of a cell.

    Colab registers a hook for that, once, and ipykernel keeps hooks for each thread. anywidget has it
    registered where it makes its first widget: on a thread of ours, whose end would be the hook's.
    """
    output = sys.modules.get("google.colab.output")
    if output is not None:
        _enable_widgets(output)


@cache  # as anywidget: who turns it off later is not overruled
def _enable_widgets(output: ModuleType) -> None:
    output.enable_custom_widget_manager()


def finds_anywidget() -> bool:
    """Return whether anywidget's own script is where VS Code and the classic notebook look for it."""
    from jupyter_core.paths import jupyter_path

    return any(
        (Path(each) / "anywidget" / "index.js").exists() for each in jupyter_path("nbextensions")
    )


def replaces_outputs(request: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Return whether the front end of an execute request shows updates of displays.

    A terminal (``jupyter console``, qtconsole), where somebody can be asked for input, does not.
    """
    can_ask = request.get("content", {}).get("allow_stdin")
    return not (_has_no_page(request, environ) and can_ask)


def draws_widgets(request: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Return whether a page may draw the widgets that the cell of an execute request shows.

    A program that runs notebooks unattended (nbclient, papermill, ``jupyter execute``) has none, and saves
    each widget's state in the notebook. Voilà runs cells in the same way, for a page that it serves.
    """
    is_served = environ.get("SERVER_SOFTWARE", "").startswith("voila")
    return is_served or not _has_no_page(request, environ)


def _has_no_page(request: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Return whether a program other than a page sent a request, which no message says outright.

    It is a Python client, which names the user and leaves the metadata empty, where pages send the cell's id;
    its kernel was not started for a server's notebook; and nothing names a host with a page.
    """
    return (
        bool(request.get("header", {}).get("username"))
        and not request.get("metadata")
        and not host_name(environ)
        and "JPY_SESSION_NAME" not in environ
    )


def running_shell() -> Any:
    """Return the IPython shell this code runs in, or None."""
    ipython = sys.modules.get("IPython")
    get_ipython = getattr(ipython, "get_ipython", None)
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
