"""What libraries keep beside a model's tensors, read from what owns it."""

import ctypes
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from hfmem_widget.sources import libraries

MIB = 2**20


class FakeDdp(DistributedDataParallel):  # type: ignore[misc]  # torch has no types for it
    """One whose reducer tells of two buckets, without a group of processes."""

    def __init__(self, sizes: str = "8192, 4096", *, is_view: bool = False) -> None:
        torch.nn.Module.__init__(self)
        self.module = torch.nn.Linear(64, 48, bias=False)
        self.mixed_precision = None
        self.is_multi_device_module = False
        self.device = torch.device("cpu")
        self.gradient_as_bucket_view = is_view
        data = SimpleNamespace(strs_map={"bucket_sizes": sizes})
        self.logger: Any = SimpleNamespace(_get_ddp_logging_data=lambda: data)


@pytest.mark.parametrize(
    ("sizes", "field", "expected"),
    [
        ("8192, 4096", "", [12288]),
        ("1", "", [1]),
        ("many", "", []),
        ("8192, 4096", "mixed_precision", []),
        ("8192, 4096", "is_multi_device_module", []),
    ],
)
def test_a_reducer_tells_its_buckets_sizes(sizes: str, field: str, expected: list[int]) -> None:
    """Buckets are on the model's device; of several devices, or of another type, there are none."""
    ddp = FakeDdp(sizes)
    if field:
        setattr(ddp, field, True)

    assert list(libraries.buckets_of([ddp])) == [("cpu", size, False) for size in expected]


def table(count: int, *, is_broken: bool = False) -> Any:
    """Return bytes as a ``std::map`` of so many entries has them; its address goes with it."""
    words = (ctypes.c_size_t * 6)()
    header = ctypes.addressof(words) + 8
    nodes = [header] * 2 if not count else [0x7000, 0x7100]
    words[:] = [0, 0xABCD00000000, 0x7000 if count else 0, *nodes, count]
    if is_broken:
        words[2] = 0x7000 - words[2]
    return words


@pytest.mark.parametrize("entries", [0, 1, 2, 300])
def test_a_table_is_counted_without_being_walked(entries: int) -> None:
    """A table's number of entries is read from the object itself."""
    assert libraries.entries_of_map(ctypes.addressof(table(entries))) == entries


@pytest.mark.parametrize(
    "words", [table(0, is_broken=True), table(2, is_broken=True), table(10**6)]
)
def test_what_does_not_look_like_a_table_is_not_counted(words: Any) -> None:
    """Fields in an unexpected order, or an absurd number, are not counted."""
    assert libraries.entries_of_map(ctypes.addressof(words)) == -1


class Library:
    """Stands in for libtorch_cuda: its tables, and how large each workspace is."""

    def __init__(self, *entries: int) -> None:
        self._tables = [table(count) for count in entries]
        for (name, size), words in zip(libraries._TABLES, self._tables, strict=True):
            setattr(self, name, Mock(return_value=ctypes.addressof(words)))
            setattr(self, size, Mock(return_value=32 * MIB))


def fake_torch(contexts: int = 1, *, initialised: bool = True) -> Any:
    cuda = SimpleNamespace(is_initialized=lambda: initialised, default_generators=(None,) * 4)
    native = SimpleNamespace(_cuda_hasPrimaryContext=lambda at: at >= 4 - contexts)
    return SimpleNamespace(cuda=cuda, _C=native, __file__="/torch/__init__.py")


def test_workspaces_are_as_many_as_the_tables_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each handle and stream has one workspace on this process' only device; on several it is not known."""
    monkeypatch.setattr(libraries, "_library", lambda _: Library(2, 1))

    assert libraries.workspaces(fake_torch()) == ("cuda:3", 96 * MIB)
    assert libraries.workspaces(fake_torch(contexts=2)) is None


@pytest.mark.parametrize(
    "torch", [fake_torch(initialised=False), SimpleNamespace(), None, fake_torch()]
)
def test_without_cuda_there_are_no_workspaces(torch: Any) -> None:
    """Without CUDA there are no workspaces, and nothing is loaded or initialised."""
    workspaces = libraries.workspaces(torch)

    assert workspaces is None or workspaces[1] == 0
