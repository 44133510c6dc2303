"""What libraries keep on a device beside a model's own tensors: buckets, gathered parameters, workspaces.

Each is read from what owns it. What cannot be read is not here, and stays unexplained. Nothing is allocated,
waited for, imported or initialised.
"""

# ruff: noqa: SLF001  (none of this is public)

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from hfmem_widget.sources.storages import Storage, storages_of
from hfmem_widget.sources.torch_cuda import only_device

BUCKETS = "DDP gradient buckets"
SHARED_BUCKETS = f"{BUCKETS}, of which gradients are views"
FIRST_BUCKETS = f"{BUCKETS} of the first step, not yet freed"
GATHERED = "FSDP gathered parameters"
REDUCED = "FSDP reduction buffers"
WORKSPACES = "cuBLAS workspaces"

_DDP = ("torch.nn.parallel.distributed", "DistributedDataParallel")
_FSDP1 = ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel")
_FSDP2 = ("torch.distributed.fsdp._fully_shard._fully_shard", "FSDPModule")

_TABLES = (
    (
        "_ZN2at4cuda33cublas_handle_stream_to_workspaceEv",
        "_ZN2at4cuda22getChosenWorkspaceSizeEv",
    ),
    (
        "_ZN2at4cuda35cublaslt_handle_stream_to_workspaceEv",
        "_ZN2at4cuda26getCUDABlasLtWorkspaceSizeEv",
    ),
)
"""Functions of libtorch_cuda (ATen/cuda/CUDAContextLight.h): the table of the workspaces that there are, one
for each handle and stream, and the bytes of each."""

_MOST_WORKSPACES = 4096


@dataclass(frozen=True, slots=True)
class GradientBuckets:
    """What a reducer of DDP holds on a device; `is_shared` where gradients are views of it."""

    device: str
    bytes: int
    is_shared: bool


class FirstBuckets:
    """The buckets of DDP's first step where gradients were views of them, each until it is freed.

    DDP makes others for the second step. Those of the first are not freed then: NCCL's process group keeps
    what it has reduced until its own thread, ten times a second, has seen that it is done, and the next
    reduction begins (TensorShelf in torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp).
    """

    def __init__(self) -> None:
        # Of each, where it is, its bytes, itself, and the module that it was made for.
        self._there: dict[int, tuple[str, int, weakref.ref[Any], weakref.ref[Any]]] = {}

    def see(self, modules: Iterable[Any]) -> None:
        """Add the buckets that gradients are views of, before a module has made others."""
        for module in _of_class(modules, _DDP):
            if module.gradient_as_bucket_view and not _has_rebuilt(module):
                for parameter in module.parameters():
                    for key, device, size, _ in storages_of(parameter.grad):
                        if key not in self._there:
                            storage = weakref.ref(parameter.grad.untyped_storage())
                            self._there[key] = (device, size, storage, weakref.ref(module))

    def left(self) -> dict[str, int]:
        """Return by device the bytes of those that no gradient is a view of any more."""
        left: dict[str, int] = {}
        for key, (device, size, storage, module) in list(self._there.items()):
            if storage() is None:
                self._there.pop(key, None)
            elif _has_rebuilt(module()):
                left[device] = left.get(device, 0) + size
        return left


@dataclass(frozen=True, slots=True)
class Sharded:
    """The storages of what was put together of shards, each with whose it is, and the shards.

    While it is there, a parameter is a view of it, and its shard is no parameter of the module.
    """

    buffers: list[tuple[str, tuple[Storage, ...]]] = field(default_factory=list)
    shards: list[Any] = field(default_factory=list)

    def add(self, owner: str, tensor: Any) -> None:
        """Add a buffer, if there is one."""
        if storages := storages_of(tensor):
            self.buffers.append((owner, storages))


def wrapped_now() -> Any:
    """Return the DDP module whose forward pass this thread is in; None if there is none."""
    return getattr(_class(_DDP), "_active_ddp_module", None)


def has_buckets(module: Any) -> bool:
    """Return whether a module is DDP's."""
    return next(_of_class([module], _DDP), None) is not None


def buckets_of(modules: Iterable[Any]) -> Iterator[GradientBuckets]:
    """Yield the gradient buckets of those modules that are DDP's, whose reducer reports their sizes."""
    for module in _of_class(modules, _DDP):
        try:
            # Buckets of mixed precision have another type than the parameters, whose bytes are reported.
            if module.mixed_precision is None and not module.is_multi_device_module:
                sizes = module.logger._get_ddp_logging_data().strs_map["bucket_sizes"]
                size = sum(int(size_of_one) for size_of_one in sizes.split(","))
                place = module.device
                key = "cpu" if place.type == "cpu" else str(place)
                yield GradientBuckets(key, size, bool(module.gradient_as_bucket_view))
        except Exception:  # noqa: BLE001, S112  (another version of torch)
            continue


def sharded_in(modules: Sequence[Any]) -> Sharded:
    """Return what both versions of FSDP have of the parameters of some modules at the moment."""
    sharded = Sharded()
    try:
        for module in _within(modules, tuple(filter(None, map(_class, (_FSDP1, _FSDP2))))):
            if hasattr(module, "_get_fsdp_state"):
                _add_fsdp2(sharded, module._get_fsdp_state())
            elif getattr(module, "_handle", None) is not None:
                _add_fsdp1(sharded, module._handle.flat_param)
    except Exception:  # noqa: BLE001, S110  (another version of torch)
        pass
    return sharded


def workspaces(torch: Any) -> tuple[str, int] | None:
    """Return the one CUDA device of this process, and the bytes of cuBLAS' workspaces; None if not known.

    PyTorch keeps them until the end; its table does not tell on which of several devices each is.
    """
    try:
        device = only_device(torch)
        return (device, sum(count * each for count, each in _tables(torch))) if device else None
    except Exception:  # noqa: BLE001  (another version of torch, or no CUDA in it)
        return None


def entries_of_map(address: int) -> int:
    """Return how many entries a ``std::map`` of libstdc++ has; -1 if what is there does not look like one.

    Only the object itself is read, never its nodes: its order, a colour, three pointers and a count.
    """
    header = address + 8
    colour, root, first, last, count = (ctypes.c_size_t * 5).from_address(header)
    is_red = not colour & 0xFFFFFFFF
    if is_red and not count and not root and first == last == header:
        return 0
    is_filled = count and root and first and last and header not in {root, first, last}
    return count if is_red and is_filled and count <= _MOST_WORKSPACES else -1


def _tables(torch: Any) -> Iterator[tuple[int, int]]:
    library = _library(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so")
    for table, size in _TABLES:
        # Before torch 2.7 cuBLASLt's were not kept.
        if not hasattr(library, table):
            continue
        entries = entries_of_map(_called(library, table))
        if entries > 0:
            yield entries, _called(library, size)


def _called(library: Any, name: str) -> int:
    function = getattr(library, name)
    function.restype = ctypes.c_size_t
    return int(function())


@cache
def _library(path: Path) -> Any:
    """Return a library that is loaded already; None if it is not."""
    try:
        return ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except (OSError, AttributeError):
        return None


def _add_fsdp1(sharded: Sharded, parameter: Any) -> None:
    # Made at the first forward pass; until then the parameter itself is the shard.
    sharded.shards.append(getattr(parameter, "_local_shard", parameter))
    for name in ("_full_param_padded", "_full_prec_full_param_padded", "_mp_shard"):
        sharded.add(GATHERED, getattr(parameter, name, None))


def _add_fsdp2(sharded: Sharded, state: Any) -> None:
    # One group before torch 2.13.
    for group in getattr(state, "_fsdp_param_groups", None) or filter(
        None, [state._fsdp_param_group]
    ):
        for parameter in group.fsdp_params:
            sharded.shards.append(parameter.sharded_param)
            for tensor in (*parameter.all_gather_outputs, *parameter._unsharded_inner_tensors):
                sharded.add(GATHERED, tensor)
        shared = group.comm_ctx
        kept = getattr(shared.all_gather_state, "all_gather_result", None)
        for result in (group._all_gather_result, kept):
            sharded.add(GATHERED, getattr(result, "all_gather_output", None))
        scatter_state = getattr(shared, "reduce_scatter_state", None)
        for scattered in (scatter_state, *getattr(shared, "reduce_scatter_states", ())):
            sharded.add(REDUCED, getattr(scattered, "reduce_scatter_input", None))
        reduced = getattr(group, "_all_reduce_state", None)
        sharded.add(REDUCED, getattr(reduced, "all_reduce_input", None))
        sharded.add(REDUCED, group._partial_reduce_output)


def _within(modules: Sequence[Any], kinds: tuple[type, ...]) -> Iterator[Any]:
    """Yield the modules of some kinds in others, each once."""
    if not kinds:
        return
    walk = sys.modules["torch"].nn.Module.modules
    seen: set[int] = set()
    for inner in (inner for module in modules for inner in walk(module)):
        if issubclass(type(inner), kinds) and id(inner) not in seen:
            seen.add(id(inner))
            yield inner


def _has_rebuilt(module: Any) -> bool:
    """Return whether a DDP module has made its buckets anew, as it does at its second forward pass."""
    return bool(getattr(module, "_has_rebuilt_buckets", False))


def _of_class(modules: Iterable[Any], place: tuple[str, str]) -> Iterator[Any]:
    kind = _class(place)
    return (each for each in modules if kind is not None and issubclass(type(each), kind))


def _class(place: tuple[str, str]) -> Any:
    module, name = place
    return getattr(sys.modules.get(module), name, None)
