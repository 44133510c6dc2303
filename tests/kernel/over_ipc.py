"""Kernels that talk over sockets in the file system, for tests that run beside each other.

Over TCP a manager picks free ports, lets them go and leaves it to the kernel to take them again: whoever
comes between, such as the kernel of another test, has them then (jupyter_client#487).
"""

from __future__ import annotations

from pathlib import Path
from tempfile import gettempdir
from typing import Any
from uuid import uuid4

import nbformat
from jupyter_client.manager import AsyncKernelManager, KernelManager
from nbclient import NotebookClient
from traitlets import HasTraits, Unicode, default


class _OverIpc(HasTraits):
    """Gives a manager addresses that nobody else can have."""

    transport = Unicode("ipc")

    @default("ip")
    def _own_path(self) -> str:
        return str(Path(gettempdir()) / f"kernel-{uuid4().hex}")


class KernelOverIpc(_OverIpc, KernelManager):
    """For whoever waits for each message."""


class AsyncKernelOverIpc(_OverIpc, AsyncKernelManager):
    """For nbclient."""


def notebook_client(notebook: nbformat.NotebookNode, **options: Any) -> NotebookClient:
    """Return what runs a notebook's cells as nbclient, nbconvert and papermill do."""
    return NotebookClient(
        notebook, kernel_name="python3", kernel_manager_class=AsyncKernelOverIpc, **options
    )
