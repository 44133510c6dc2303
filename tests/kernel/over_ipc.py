"""Kernels that talk over sockets in the file system, for tests that run beside each other.

Over TCP a manager picks free ports, lets them go and leaves it to the kernel to take them again: whoever
comes between, such as the kernel of another test, has them then (jupyter_client#487).
"""

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any
from uuid import uuid4

import nbformat
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager, KernelManager
from nbclient import NotebookClient
from traitlets import HasTraits, Unicode, default


class OneCommand(KernelSpecManager):
    """Knows one kernel, that of a command."""

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__()
        self._command = command

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(argv=[*self._command], display_name=kernel_name, language="python")


class _OverIpc(HasTraits):
    """Gives a manager addresses that no other process can have."""

    transport = Unicode("ipc")

    @default("ip")
    def _own_path(self) -> str:
        return str(Path(gettempdir()) / f"kernel-{uuid4().hex}")


class KernelOverIpc(_OverIpc, KernelManager):
    """For clients that wait for each message."""


class AsyncKernelOverIpc(_OverIpc, AsyncKernelManager):
    """For nbclient."""


def run_notebook(
    notebook: nbformat.NotebookNode, command: Sequence[str], **options: Any
) -> nbformat.NotebookNode:
    """Run a notebook's cells as nbclient, nbconvert and papermill do, and return it with its outputs."""
    with TemporaryDirectory(prefix="ipython-", ignore_cleanup_errors=True) as home:
        client = NotebookClient(
            notebook,
            timeout=None,  # pytest's own limit ends what hangs
            kernel_name="python3",
            kernel_manager_class=AsyncKernelOverIpc,
            ipython_hist_file="",  # that is an argument, and a copy of a process takes none
            **options,
        )
        client.create_kernel_manager().kernel_spec_manager = OneCommand(command)
        return client.execute(env={**os.environ, "IPYTHONDIR": home})
