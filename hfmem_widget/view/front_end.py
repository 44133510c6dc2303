"""The shell that runs a cell, and whether its front end replaces outputs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any


def replaces_outputs(request: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Return whether the front end of an execute request shows updates of displays.

    A terminal (``jupyter console``, ``jupyter run``, qtconsole) prints only the first output, and no message
    names it. It is recognised by these signs: it is a Python client (`jupyter_client`), which names the user
    and leaves the metadata empty, where pages send the cell's id; it can be asked for input, unlike a
    program that runs notebooks unattended (nbclient); and its kernel was not started for a server's notebook.
    """
    is_terminals = (
        bool(request.get("content", {}).get("allow_stdin"))
        and not request.get("metadata")
        and bool(request.get("header", {}).get("username"))
        and "JPY_SESSION_NAME" not in environ
    )
    return not is_terminals


def running_shell() -> Any:
    """Return the IPython shell this code runs in, or None."""
    ipython = sys.modules.get("IPython")
    get_ipython = getattr(ipython, "get_ipython", None)
    return get_ipython() if get_ipython is not None else None


def running_magics(name: str) -> Any:
    """Return the magics of the shell this code runs in that have a class name; None without them."""
    shell = running_shell()
    return None if shell is None else shell.magics_manager.registry.get(name)
