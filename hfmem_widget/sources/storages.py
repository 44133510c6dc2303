"""The storages behind a tensor, and their bytes: of plain tensors, and of wrappers that look like one.

A tensor's own figures (`nbytes`, `numel`) may be far from what it keeps in memory: an expanded tensor, a
view, a shard, a quantised weight. Its storages are what the allocator has handed out.

Nothing is copied, waited for or initialised, and torch is never imported.
"""

# ruff: noqa: SLF001  (torch has no public way to identify a storage, or to read it unnoticed)

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from hfmem_widget.sources.mapped import MappedFiles

Storage = tuple[int, str, int, str]
"""``(key, device, bytes, dtype)`` of one storage, such as ``(94138722492544, "cuda:0", 4096, "float32")``.

The key identifies a storage among those that live; it is the address of one, so it means nothing later.
The device is "cpu", "cuda:0", "mps:0", …, or `MANAGED` (pinned memory too). The dtype is what the storage is
read as: the packed one, where it is quantised.
"""

MANAGED = "managed"
"""The device of memory that the kernel or CUDA's driver moves, and that no allocator counts: mapped files
(as safetensors' on the CPU) and the states of paged optimizers."""

_DEEPEST = 8
"""The most containers and wrappers in one another, so that one that holds itself ends too."""

_QUANTISED_BESIDE = ("quant_state", "CB", "SCB")
"""Where bitsandbytes' parameters keep scales and code books that are no parameters themselves."""

HQQ = "hqq.core.quantize"

_PARTS_OF_LAYOUT = {
    "torch.sparse_coo": ("_indices", "_values"),
    "torch.sparse_csr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_bsr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_csc": ("ccol_indices", "row_indices", "values"),
    "torch.sparse_bsc": ("ccol_indices", "row_indices", "values"),
}


class _QuickWay:
    """What the quick way knows: making a text costs more than all the rest of a reading."""

    def __init__(self) -> None:
        self.types: set[type] = set()  # that have one storage and nothing else
        self.devices: dict[object, str] = {}  # the names of those seen so far; "" for meta
        self.dtypes: dict[object, str] = {}


_quick = _QuickWay()

_mapped_files = MappedFiles()


def storages_of(tensor: Any) -> tuple[Storage, ...]:
    """Return the storages of a tensor: most have one, some none, few several.

    A tensor without bytes has none: on the meta device, fake, freed (as FSDP does between uses), not yet
    initialised. So has anything that is no tensor, or cannot be read: this never raises. A gradient is a
    tensor of its own, and not looked for. Two tensors may share a storage, such as views, tied weights and
    code books: count each key once.
    """
    if type(tensor) in _quick.types:
        try:
            # The user's own function modes, if there are any, would notice every reading.
            if not sys.modules["torch"]._C._len_torch_function_stack():
                storage = tensor.untyped_storage()
                device = _quick.devices[storage.device]
                dtype = _quick.dtypes[tensor.dtype]
                size = storage.nbytes()
                if device == "cpu" and not storage.resizable():
                    device = _beside_malloc(tensor, storage)
                return ((storage._cdata, device, size, dtype),) if size and device else ()
        except Exception:  # noqa: BLE001, S110  (whatever it is, it is not plain)
            pass
    torch: Any = sys.modules.get("torch")
    try:
        if torch is None or not issubclass(type(tensor), torch.Tensor):
            return ()
        _quick.types.update((torch.Tensor, torch.nn.Parameter))
        # A subclass or a mode of the user's own is not to see that somebody looks.
        with torch._C.DisableTorchFunction():
            return tuple(
                {storage[0]: storage for storage in _all_of(torch, tensor, _DEEPEST)}.values()
            )
    except Exception:  # noqa: BLE001  (a tensor that cannot be read must not end a training)
        return ()


def states_of(optimizer: Any) -> Iterator[Any]:
    """Yield every tensor in an optimizer's states, through wrappers (``.optimizer``) and nested containers.

    A tensor that states share comes more than once. Steps that are counted in tensors on the CPU are among
    them.
    """
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    for _ in range(_DEEPEST):
        if tensor is None or optimizer is None:
            return
        state = _attribute(optimizer, "state")
        if isinstance(state, Mapping):
            yield from _tensors_in(state, tensor, _DEEPEST)
            return
        optimizer = _attribute(optimizer, "optimizer")


def scales_of(module: Any) -> Iterator[Any]:
    """Yield the scales and zero points of a layer that HQQ has quantised: no parameters, nor buffers."""
    hqq, torch = sys.modules.get(HQQ), sys.modules.get("torch")
    if torch is not None and isinstance(module, getattr(hqq, "HQQLinear", ())):
        yield from _tensors_in(_attribute(module, "meta"), torch.Tensor, _DEEPEST)


def _all_of(torch: Any, tensor: Any, deepest: int) -> Iterator[Storage]:
    kind = type(tensor)
    if deepest <= 0 or not issubclass(kind, torch.Tensor):
        return
    inner: list[Any] = []
    if hasattr(kind, "__tensor_flatten__"):
        # DTensor (only its own shard), torchao, jagged, semi-sparse: wrappers without bytes of their own.
        inner = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    elif (parts := _PARTS_OF_LAYOUT.get(str(tensor.layout))) is not None:
        inner = [getattr(tensor, name)() for name in parts]
    else:
        yield from _own(torch, tensor)
        if tensor.dtype in _quantised(torch) and "per_channel" in str(tensor.qscheme()):
            inner = [tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()]
        if kind not in _quick.types:
            for name in _QUANTISED_BESIDE:
                inner += _tensors_in(_attribute(tensor, name), torch.Tensor, deepest - 1)
    for part in inner:
        yield from _all_of(torch, part, deepest - 1)


def _own(torch: Any, tensor: Any) -> Iterator[Storage]:
    storage = tensor.untyped_storage()
    # Not the tensor's device: a fake tensor has the device on which it would be.
    place = storage.device
    device = _quick.devices[place] = {"meta": "", "cpu": "cpu"}.get(place.type, str(place))
    size = storage.nbytes()
    if not device or not size:
        return
    if type(tensor) not in _quick.types and not _has_bytes(torch, tensor, storage):
        return
    if device == "cpu" and not storage.resizable():
        device = _beside_malloc(tensor, storage)
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.dtype not in _quantised(torch):
        _quick.dtypes[tensor.dtype] = dtype
    yield storage._cdata, device, size, dtype


def _beside_malloc(tensor: Any, storage: Any) -> str:
    """Return the device of bytes that torch did not allocate, so cannot resize: a file's, CUDA's, NumPy's."""
    if getattr(tensor, "is_paged", False):
        return MANAGED
    # To ask a lazily cloned tensor for its address would copy it.
    if sys.modules["torch"]._C._is_cow_tensor(tensor):
        return "cpu"
    return MANAGED if _mapped_files.hold(storage.data_ptr(), storage._cdata) else "cpu"


def _has_bytes(torch: Any, tensor: Any, storage: Any) -> bool:
    """Return whether a storage is real; wrappers without bytes of their own have one that is not."""
    # To ask a lazily cloned tensor for its address would copy it.
    if torch._C._is_cow_tensor(tensor):
        return True
    try:
        return bool(storage.data_ptr())
    except RuntimeError:
        return False


def _quantised(torch: Any) -> tuple[Any, ...]:
    """Return the dtypes of tensors that may keep scales beside their storage."""
    return (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4)


def _tensors_in(value: Any, tensor: type, deepest: int) -> Iterator[Any]:
    if issubclass(type(value), tensor):
        yield value
        return
    if deepest <= 0 or value is None:
        return
    inside: list[Any] = []
    try:
        # A copy in one go: a training may add states on its own thread meanwhile.
        if isinstance(value, Mapping):
            inside = list(value.values())
        elif isinstance(value, (list, tuple, set, frozenset)):
            inside = list(value)
        elif type(value).__name__ == "QuantState":
            inside = list(vars(value).values())
    except Exception:  # noqa: BLE001  (it changed under our hands; the next pass sees it)
        return
    for item in inside:
        yield from _tensors_in(item, tensor, deepest - 1)


def _attribute(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name, None)
    except Exception:  # noqa: BLE001  (a property of somebody else's may raise anything)
        return None
