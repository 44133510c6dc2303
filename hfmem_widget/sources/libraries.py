"""Memory of libraries on a device besides a model's own tensors: buckets, gathered parameters, workspaces.

Each is read from the object that owns it; memory that cannot be read stays unexplained. Nothing is allocated,
waited for, imported or initialised.
"""

# ruff: noqa: SLF001  (none of this is public)

import ctypes
import os
import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from hfmem_widget.sources.heap.tensors import type_in
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
    ("_ZN2at4cuda33cublas_handle_stream_to_workspaceEv", "_ZN2at4cuda22getChosenWorkspaceSizeEv"),
    (
        "_ZN2at4cuda35cublaslt_handle_stream_to_workspaceEv",
        "_ZN2at4cuda26getCUDABlasLtWorkspaceSizeEv",
    ),
)
"""Functions of libtorch_cuda (ATen/cuda/CUDAContextLight.h): the table of the allocated workspaces, one for
each handle and stream, and the bytes of each."""


class FirstBuckets:
    """The buckets of DDP's first step if gradients were views of them, each until it is freed.

    DDP makes other buckets for the second step. The first ones are not freed then: NCCL's process group keeps
    the tensors that it has reduced until its own thread, ten times a second, has seen that it is done, and
    the next reduction begins (TensorShelf in torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp).
    """

    def __init__(self) -> None:
        # By the storage's key: its device, its bytes, itself, and the module that it was made for.
        self._buckets: dict[int, tuple[str, int, weakref.ref[Any], weakref.ref[Any]]] = {}

    def see(self, modules: Iterable[Any]) -> None:
        """Add the buckets that gradients are views of, until a module has made other buckets."""
        for module in filter(has_buckets, modules):
            if module.gradient_as_bucket_view and not _has_rebuilt(module):
                for parameter in module.parameters():
                    for key, device, size, _ in storages_of(parameter.grad):
                        if key not in self._buckets:
                            storage = weakref.ref(parameter.grad.untyped_storage())
                            self._buckets[key] = (device, size, storage, weakref.ref(module))

    def left(self) -> dict[str, int]:
        """Return the bytes of the buckets that gradients are not views of now, by device."""
        left: dict[str, int] = {}
        for key, (device, size, storage, module) in list(self._buckets.items()):
            if storage() is None:
                self._buckets.pop(key, None)
            elif _has_rebuilt(module()):
                left[device] = left.get(device, 0) + size
        return left


def wrapped_now() -> Any:
    """Return the DDP module whose forward pass this thread is in; None if there is none."""
    return getattr(type_in(*_DDP), "_active_ddp_module", None)


def has_buckets(module: Any) -> bool:
    """Return whether a module is DDP's."""
    return issubclass(type(module), type_in(*_DDP) or ())


def replicas_of(module: Any) -> int:
    """Return the number of GPUs that share a module's batches by ``nn.DataParallel``; 1 without it."""
    is_parallel = issubclass(
        type(module), type_in("torch.nn.parallel.data_parallel", "DataParallel") or ()
    )
    return max(1, len(module.device_ids)) if is_parallel else 1


def buckets_of(modules: Iterable[Any]) -> Iterator[tuple[str, int, bool]]:
    """Yield the device and the bytes of DDP's gradient buckets, and whether gradients are views of them."""
    for module in filter(has_buckets, modules):
        with suppress(Exception):  # another version of torch
            # Buckets of mixed precision have another type than the parameters, whose bytes are reported.
            if module.mixed_precision is None and not module.is_multi_device_module:
                sizes = module.logger._get_ddp_logging_data().strs_map["bucket_sizes"]
                size = sum(map(int, sizes.split(",")))
                device = "cpu" if module.device.type == "cpu" else str(module.device)
                yield device, size, bool(module.gradient_as_bucket_view)


def sharded_in(modules: Sequence[Any]) -> tuple[list[tuple[str, tuple[Storage, ...]]], list[Any]]:
    """Return the storages that FSDP gathered from shards, each with its owner, and the shards.

    Meanwhile the module's parameters are views of these storages, and the shards are not its parameters.
    """
    gathered: list[tuple[str, Any]] = []
    shards: list[Any] = []
    with suppress(Exception):  # another version of torch
        for module in _within(modules, (type_in(*_FSDP1) or (), type_in(*_FSDP2) or ())):
            if hasattr(module, "_get_fsdp_state"):
                state = module._get_fsdp_state()
                groups = getattr(state, "_fsdp_param_groups", None)  # one group before torch 2.13
                for group in groups or filter(None, [state._fsdp_param_group]):
                    shards += [parameter.sharded_param for parameter in group.fsdp_params]
                    gathered += _gathered_by(group)
            elif (handle := getattr(module, "_handle", None)) is not None:
                # Made at the first forward pass; until then the parameter itself is the shard.
                parameter = handle.flat_param
                shards.append(getattr(parameter, "_local_shard", parameter))
                for name in ("_full_param_padded", "_full_prec_full_param_padded", "_mp_shard"):
                    gathered.append((GATHERED, getattr(parameter, name, None)))
    owned = ((owner, storages_of(tensor)) for owner, tensor in gathered)
    return [(owner, storages) for owner, storages in owned if storages], shards


def workspaces(torch: Any) -> tuple[str, int] | None:
    """Return the one CUDA device of this process, and the bytes of cuBLAS' workspaces; None if unknown.

    PyTorch keeps them until the end; its table does not say which of several devices each is on.
    """
    try:
        device = only_device(torch)
        return (device, sum(count * each for count, each in _tables(torch))) if device else None
    except Exception:  # noqa: BLE001  (another version of torch, or no CUDA in it)
        return None


def entries_of_map(address: int) -> int:
    """Return the number of entries of a libstdc++ ``std::map``; -1 if its header does not look like one."""
    header = address + 8
    colour, root, first, last, count = (ctypes.c_size_t * 5).from_address(header)
    is_red = not colour & 0xFFFFFFFF
    if is_red and not count and not root and first == last == header:
        return 0
    is_filled = count and root and first and last and header not in {root, first, last}
    return count if is_red and is_filled and count <= 4096 else -1


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
    """Return a library that the process has loaded; None if it has not."""
    try:
        return ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except (OSError, AttributeError):
        return None


def _gathered_by(group: Any) -> Iterator[tuple[str, Any]]:
    for parameter in group.fsdp_params:
        for tensor in (*parameter.all_gather_outputs, *parameter._unsharded_inner_tensors):
            yield GATHERED, tensor
    shared = group.comm_ctx
    kept = getattr(shared.all_gather_state, "all_gather_result", None)
    for result in (group._all_gather_result, kept):
        yield GATHERED, getattr(result, "all_gather_output", None)
    scatter_state = getattr(shared, "reduce_scatter_state", None)
    for scattered in (scatter_state, *getattr(shared, "reduce_scatter_states", ())):
        yield REDUCED, getattr(scattered, "reduce_scatter_input", None)
    reduced = getattr(group, "_all_reduce_state", None)
    yield REDUCED, getattr(reduced, "all_reduce_input", None)
    yield REDUCED, group._partial_reduce_output


def _within(modules: Sequence[Any], kinds: tuple[Any, ...]) -> Iterator[Any]:
    if any(kinds):
        walk = sys.modules["torch"].nn.Module.modules
        every = {id(inner): inner for module in modules for inner in walk(module)}
        yield from (inner for inner in every.values() if issubclass(type(inner), kinds))


def _has_rebuilt(module: Any) -> bool:
    # DDP makes its buckets anew at the second forward pass.
    return bool(getattr(module, "_has_rebuilt_buckets", False))
