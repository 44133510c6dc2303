"""The files of a checkpoint, and which of them are completed as their tensors go into a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path


class Shards:
    """Which of a checkpoint's files are completed, as their tensors go into a model.

    `sizes` are the bytes of each tensor, by file; empty for files that are not safetensors.
    """

    def __init__(self, files: Sequence[str] = ()) -> None:
        self.sizes = {file: _sizes_in(file) for file in files}
        self._file_of = {name: file for file, sizes in self.sizes.items() for name in sizes}
        self._waiting: Counter[str] = Counter()
        self._placing: tuple[str, ...] = ()

    @property
    def wanted(self) -> int:
        """How many files have a tensor that the model takes."""
        return len(self._waiting)

    def collect(self, name: str) -> None:
        """Take note of a tensor that the model takes."""
        file = self._file_of.get(name)
        if file is not None:
            self._waiting[file] += 1

    def place(self, names: Iterable[str]) -> Iterator[tuple[int, bool]]:
        """Take note of the tensors that go into the model now: those before them are in it.

        Yields the bytes of each of those, and whether a file is completed with it.
        """
        placed, self._placing = self._placing, tuple(names)
        for name in placed:
            file = self._file_of.pop(name, None)
            if file is not None:
                self._waiting[file] -= 1
                yield self.sizes[file][name], not self._waiting[file]


def _sizes_in(file: str) -> dict[str, int]:
    """Return the bytes of each tensor in a file of safetensors; nothing of any other file."""
    if not file.endswith(".safetensors"):
        return {}
    from hfmem_widget.features.fit.checkpoint import entries

    try:
        return {name: size for name, _, size in entries(Path(file))}
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError):
        return {}  # transformers, which reads it next, knows better what to say
