"""The storages behind a tensor, and their bytes: of plain tensors, and of wrappers that look like one.

A tensor's own figures (`nbytes`, `numel`) may be far from the memory that it keeps: an expanded tensor, a
view, a shard, a quantised weight. Its storages are the blocks of the allocator.

Also the tensors of a KV cache, and its growth: transformers' caches have layers with tensors as fields, for
keys and values, packed ones with their scales, and states of convolutions and recurrences. Older models, and
other libraries, pass tuples of tuples.

Nothing is copied, waited for or initialised, and torch is never imported.
"""

# ruff: noqa: SLF001  (torch has no public way to identify a storage, or to read it unnoticed)

import functools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any

from hfmem_widget.sources.heap.tensors import type_in
from hfmem_widget.sources.procfs import MappedFiles

Storage = tuple[int, str, int, str]
"""``(key, device, bytes, dtype)`` of one storage, such as ``(94138722492544, "cuda:0", 4096, "float32")``.

The key identifies a storage among the live ones: it is an address, so it means nothing later. The device is
"cpu", "cuda:0", …, or `MANAGED` (also pinned memory). The dtype is the tensor's, if quantised the packed one.
"""

MANAGED = "managed"
"""The device of memory that the kernel or CUDA's driver moves, and that no allocator counts: mapped files
(as safetensors' on the CPU) and the states of paged optimizers."""

_DEEPEST = 8
"""The most nested containers and wrappers, so that the search ends in a container that holds itself."""

_LEAF, _TENSOR, _VALUES, _MEMBERS, _FIELDS = range(5)

_LEAVES: tuple[type, ...] = (str, bytes, int, float, complex, bool, type(None), type)
_LEAVES += (FunctionType, MethodType, ModuleType)

MOST_WITHIN, MOST_IN_ONE_ANOTHER = 4096, 6
"""The most values of a list or a dict that is searched, such as a cache's layers, and of nested objects."""

_QUANTISED_BESIDE = ("quant_state", "CB", "SCB")
"""Fields of bitsandbytes' parameters with scales and code books, which are not parameters themselves."""

HQQ = "hqq.core.quantize"

_PARTS_OF_LAYOUT = {
    "torch.sparse_coo": ("_indices", "_values"),
    "torch.sparse_csr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_bsr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_csc": ("ccol_indices", "row_indices", "values"),
    "torch.sparse_bsc": ("ccol_indices", "row_indices", "values"),
}


class _Known:
    """Types, and names of devices and dtypes, seen so far: making a name takes most of a reading."""

    def __init__(self) -> None:
        self.types: set[type] = set()  # of tensors with one storage and nothing else
        self.devices: dict[object, str] = {}  # "" for meta
        self.dtypes: dict[object, str] = {}


_known = _Known()

_mapped_files = MappedFiles()


def storages_of(tensor: Any) -> tuple[Storage, ...]:
    """Return the storages of a tensor: most have one, some none, few several.

    A tensor without bytes has none (meta, fake, freed by FSDP, uninitialised), nor has another object, or a
    tensor that cannot be read: this never raises. A gradient is a tensor of its own, and not included.
    Tensors may share a storage, as views do: count each key once.
    """
    if type(tensor) in _known.types:
        try:
            # The user's own function modes, if there are any, would notice every reading.
            if not sys.modules["torch"]._C._len_torch_function_stack():
                storage = tensor.untyped_storage()
                device = _known.devices[storage.device]
                dtype = _known.dtypes[tensor.dtype]
                size = storage.nbytes()
                if device == "cpu" and not storage.resizable():
                    device = _beside_malloc(tensor, storage)
                return ((storage._cdata, device, size, dtype),) if size and device else ()
        except Exception:  # noqa: BLE001, S110  (it is not a plain tensor)
            pass
    torch: Any = sys.modules.get("torch")
    try:
        if torch is None or not issubclass(type(tensor), torch.Tensor):
            return ()
        _known.types.update((torch.Tensor, torch.nn.Parameter))
        # A subclass or a mode of the user's own must not notice the reading.
        with torch._C.DisableTorchFunction():
            storages = _all_of(torch, tensor, _DEEPEST)
            return tuple({storage[0]: storage for storage in storages}.values())
    except Exception:  # noqa: BLE001  (a tensor that cannot be read must not end a training)
        return ()


def shapes_in(tensor: Any) -> dict[int, tuple[int, ...]]:
    """Return the shapes of the parts of a sparse tensor or a wrapper, by their storages' keys."""
    with sys.modules["torch"]._C.DisableTorchFunction():
        parts = _parts(tensor) or ()
        return {storage[0]: tuple(part.shape) for part in parts for storage in storages_of(part)}


def states_of(optimizer: Any) -> Iterator[Any]:
    """Yield the tensors in an optimizer's states, through wrappers (``.optimizer``); shared ones repeat."""
    for _ in range(_DEEPEST):
        states = _attribute(optimizer, "state")
        if isinstance(states, Mapping):
            for state in list(states.values()):
                yield from tensors_in(state)
            return
        optimizer = _attribute(optimizer, "optimizer")


def scales_of(module: Any) -> list[Any]:
    """Return the scales and zero points of a layer that HQQ has quantised: neither parameters nor buffers."""
    is_quantised = isinstance(module, type_in(HQQ, "HQQLinear") or ())
    return tensors_in(_attribute(module, "meta")) if is_quantised else []


def _all_of(torch: Any, tensor: Any, deepest: int) -> Iterator[Storage]:
    kind = type(tensor)
    if deepest <= 0 or not issubclass(kind, torch.Tensor):
        return
    inner = _parts(tensor)
    if inner is None:
        inner = []
        yield from _own(torch, tensor)
        if tensor.dtype in _quantised(torch) and "per_channel" in str(tensor.qscheme()):
            inner = [tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()]
        if kind not in _known.types:
            for name in _QUANTISED_BESIDE:
                inner += tensors_in(_attribute(tensor, name), deepest - 1)
    for part in inner:
        yield from _all_of(torch, part, deepest - 1)


def _parts(tensor: Any) -> list[Any] | None:
    """Return the tensors in a tensor without bytes of its own; None for another."""
    if hasattr(type(tensor), "__tensor_flatten__"):
        # DTensor (its own shard only), torchao, jagged, semi-sparse.
        return [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    names = _PARTS_OF_LAYOUT.get(str(tensor.layout))
    return None if names is None else [getattr(tensor, name)() for name in names]


def _own(torch: Any, tensor: Any) -> Iterator[Storage]:
    storage = tensor.untyped_storage()
    # Not the tensor's device: a fake tensor has the device on which it would be.
    place = storage.device
    device = _known.devices[place] = {"meta": "", "cpu": "cpu"}.get(place.type, str(place))
    size = storage.nbytes()
    if not device or not size:
        return
    # Wrappers without bytes of their own have a storage without an address.
    if type(tensor) not in _known.types and not address_of(tensor, storage):
        return
    if device == "cpu" and not storage.resizable():
        device = _beside_malloc(tensor, storage)
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.dtype not in _quantised(torch):
        _known.dtypes[tensor.dtype] = dtype
    if device:
        yield storage._cdata, device, size, dtype


def _beside_malloc(tensor: Any, storage: Any) -> str:
    """Return the device of bytes that torch did not allocate, so cannot resize: a file's, CUDA's, NumPy's."""
    if getattr(tensor, "is_paged", False):
        return MANAGED
    address = address_of(tensor, storage)
    if not address:
        return ""
    return MANAGED if _mapped_files.hold(address) else "cpu"


def address_of(tensor: Any, storage: Any) -> int:
    """Return a storage's address; 0 if it has none, -1 for a lazy clone, which reading the address copies."""
    try:
        is_lazy = sys.modules["torch"]._C._is_cow_tensor(tensor)
        return -1 if is_lazy else int(storage.data_ptr())
    except RuntimeError:
        return 0


def _quantised(torch: Any) -> tuple[Any, ...]:
    """Return the dtypes of tensors that may keep scales beside their storage."""
    return (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4)


def tensors_in(value: object, deepest: int = MOST_IN_ONE_ANOTHER) -> list[Any]:
    """Return every tensor in containers and objects' fields, nested up to `deepest`, but not in models."""
    tensors: list[Any] = []
    if "torch" in sys.modules:
        _collect(value, deepest, tensors)
    return tensors


def _collect(value: Any, deepest: int, tensors: list[Any]) -> None:
    """Add the tensors in an object to a list; a generator would take twice as long."""
    role = _role_of(type(value))  # type: ignore[arg-type]  # classes can be hashed
    try:
        # A copy in one go: training may add states on its own thread meanwhile.
        if role == _VALUES:
            inside = list(value)
        elif role == _MEMBERS:
            inside = list(value.values())
        elif role == _FIELDS:
            inside = list(vars(value).values())
        else:
            if role == _TENSOR:
                tensors.append(value)
            return
    except Exception:  # noqa: BLE001  (it changed meanwhile; the next pass sees it)
        return
    if deepest <= 0 or len(inside) > MOST_WITHIN:
        return
    for item in inside:
        # Most items are numbers or names.
        role = _role_of(type(item))  # type: ignore[arg-type]
        if role == _TENSOR:
            tensors.append(item)
        elif role != _LEAF:
            _collect(item, deepest - 1, tensors)


@functools.cache
def _role_of(kind: type) -> int:
    torch: Any = sys.modules["torch"]
    config = type_in("transformers.configuration_utils", "PretrainedConfig")
    leaves = (*_LEAVES, torch.nn.Module, config or ())
    if issubclass(kind, torch.Tensor):
        return _TENSOR
    if issubclass(kind, leaves):
        return _LEAF
    if issubclass(kind, (list, tuple, set, frozenset)):
        return _VALUES
    if issubclass(kind, Mapping):
        return _MEMBERS
    return _FIELDS if any("__dict__" in vars(base) for base in kind.__mro__) else _LEAF


def _attribute(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name, None)
    except Exception:  # noqa: BLE001  (a property of somebody else's may raise anything)
        return None


def storages_in(cache: object) -> tuple[Storage, ...]:
    """Return the storages of a cache, each once; () if it cannot be read."""
    try:
        storages = (storage for tensor in tensors_in(cache) for storage in storages_of(tensor))
        return tuple({storage[0]: storage for storage in storages}.values())
    except Exception:  # noqa: BLE001  (a cache may be of the user's own, and raise anything)
        return ()


def is_cache(value: object) -> bool:
    """Return whether an object is a cache of transformers, by its type alone."""
    return issubclass(type(value), cache_kind() or ())


def cache_kind() -> type | None:
    """Return transformers' class of caches; None if it is not imported, or has none."""
    return type_in("transformers.cache_utils", "Cache")


@dataclass(frozen=True, slots=True)
class CacheGrowth:
    """The growth of a cache with each further token, over all layers and all sequences of the batch."""

    # Added by each token; in a static cache, taken from its allocated bytes
    token_bytes: float = 0.0
    window_bytes: float = 0.0  # added besides as long as there are fewer tokens than `window`
    window: int = 0  # the longest sliding window, in tokens; 0 if there is none
    limit: int = 0  # the most tokens that it can hold; 0 if it has no bound
    length: int = 0  # the tokens that it holds; 0 if reading them would wait for the device


def growth_of(cache: object) -> CacheGrowth | None:
    """Return a cache's growth; None if it cannot be read."""
    try:
        return _growth(cache)
    except Exception:  # noqa: BLE001  (as above)
        return None


def _growth(cache: Any) -> CacheGrowth | None:
    # The encoder's part does not grow.
    cache = getattr(cache, "self_attention_cache", cache)
    layers = getattr(cache, "layers", cache)
    if not isinstance(layers, (list, tuple)):
        return None
    token_bytes = window_bytes = 0.0
    window = limit = length = 0
    for layer in layers:
        is_tuple = isinstance(layer, (list, tuple))
        field = functools.partial(getattr, layer)
        pair = tuple(layer[:2]) if is_tuple else (field("keys", None), field("values", None))
        shapes = [sizes_of(tensor) for tensor in pair]
        cumulative = field("cumulative_length", None)
        held = cumulative if type(cumulative) is int else 0
        if held and field("_quantized_keys", None) is not None:
            # The average so far: the newest tokens are not packed yet.
            token_bytes += sum(size for _, _, size, _ in storages_in(layer)) / held
            length = max(length, held)
            continue
        if not all(len(shape) > 1 and shape[-2] for shape in shapes):
            continue
        a_token = sum(tensor.nbytes / shape[-2] for tensor, shape in zip(pair, shapes, strict=True))
        most = field("max_cache_len", None)
        limit = max(limit, most or 0)
        if field("is_sliding", None) is True:
            window_bytes += a_token
            window = max(window, most or field("sliding_window", None) or 0)
            length = max(length, held)
        else:
            token_bytes += a_token
            length = length if most else max(length, shapes[0][-2])
    growth = CacheGrowth(token_bytes, window_bytes, int(window), int(limit), length)
    return growth if token_bytes or window_bytes else None


def sizes_of(value: object) -> tuple[int, ...]:
    """Return the shape of a tensor; () for another object, and under tracing, where a size is a symbol."""
    shape = getattr(value, "shape", None)
    return tuple(shape) if isinstance(shape, tuple) and {*map(type, shape)} == {int} else ()
