"""What still holds memory: the Python heap, looked through on demand for tensors' storages."""

from __future__ import annotations

from hfmem_widget.sources.heap.model import Holder, Holders, Remainder
from hfmem_widget.sources.heap.roots import Root, kernel_roots
from hfmem_widget.sources.heap.scan import scan

__all__ = ["Holder", "Holders", "Remainder", "Root", "kernel_roots", "scan"]
