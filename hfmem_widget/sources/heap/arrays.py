"""The referents and the memory of NumPy's arrays and of the tables of pandas, polars, Arrow and datasets.

None of these libraries is imported, and no code of a user's subclass runs: arrays are read through NumPy's
own descriptors, pandas' objects as the garbage collector sees them, Arrow's and polars' by their own figures.
"""

import gc
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from ctypes import addressof, c_char
from functools import lru_cache
from itertools import chain
from typing import Any, Literal, NamedTuple

from hfmem_widget.sources.heap.model import Kind
from hfmem_widget.sources.heap.referents import Look, fields_of, in_c, in_items, kept_fields
from hfmem_widget.sources.heap.tensors import type_in
from hfmem_widget.sources.storages import address_of

Role = Literal["", "array", "frame", "inner", "buffers"]

_ROLES: tuple[tuple[str, tuple[str, ...], Role, Kind], ...] = (
    ("numpy", ("ndarray",), "array", "NumPy"),
    ("pandas", ("DataFrame", "Series", "Index"), "frame", "pandas"),
    ("datasets", ("Dataset",), "frame", "Arrow"),
    ("polars", ("DataFrame", "Series"), "buffers", "polars"),
    ("PIL.Image", ("Image",), "buffers", "PIL"),
    ("multiprocessing.shared_memory", ("SharedMemory",), "buffers", "shared memory"),
    ("pyarrow", ("Table", "RecordBatch", "ChunkedArray", "Array"), "buffers", "Arrow"),
)

_BYTES_OF_MODES = {"1": 1, "L": 1, "P": 1, "I;16": 2}  # of a pixel; all others have 4
_name_of = lru_cache(256)(str)


class HeapMemory(NamedTuple):
    """One piece of memory on the host."""

    key: int  # its address, or that of the object that owns it
    bytes: int
    shape: tuple[int, ...] = ()
    dtype: str = ""
    start: int = 0  # its address, if other objects may have a part of it
    is_lent: bool = False  # to the object; it may then be a mapped file's


def role_of(kind: type) -> tuple[Role, Kind]:
    """Return how objects of a type hold memory, and its kind; ``""`` for other libraries' types."""
    for library, names, role, held in _ROLES:
        if any(issubclass(kind, type_in(library, name) or ()) for name in names):
            return role, held
    # An extension's type has no entry for its module, but type's own getter knows it.
    module = str(vars(type)["__module__"].__get__(kind))
    return "inner" if module.partition(".")[0] == "pandas" else "", "tensors"


def objects_in(array: Any) -> list[Any]:
    """Return the objects in an array of objects; [] for another array."""
    own = _of_numpy()
    return own["tolist"](own["ravel"](array)) if own["dtype"].__get__(array).hasobject else []


LOOKS: Mapping[Role, Look] = {
    # A subclass has attributes, such as a mask.
    "array": lambda array: chain(kept_fields(array), in_items(iter(objects_in(array)))),
    "frame": kept_fields,
    "inner": lambda value: in_c(value) if gc.is_tracked(value) else iter(()),
}


def owner_of(array: Any) -> Any:
    """Return the array or the tensor whose memory an array is a view of."""
    tensor, base_of = type_in("torch", "Tensor"), _of_numpy()["base"]
    for _ in range(64):
        base = base_of.__get__(array)
        if tensor is not None and issubclass(type(base), tensor):
            return base
        if role_of(type(base))[0] != "array":
            break
        array = base
    return array


def size_of(value: Any, *, is_array: bool) -> float:
    """Return the bytes of an array's or a tensor's own elements; of other objects infinitely many."""
    own = _of_numpy() if is_array else vars(type_in("torch", "_C.TensorBase") or object)
    with suppress(Exception):  # another object, or a sparse tensor
        return float(own["nbytes"].__get__(value))
    return math.inf


def base_of(array: Any) -> Any:
    """Return the object that lends an array its memory; None if the memory is the array's own."""
    base = _of_numpy()["base"].__get__(array)
    return base.obj if type(base) is memoryview else base


def memory_of(array: Any) -> HeapMemory:
    """Return the memory of an array that is not a view."""
    size, shape, dtype, base = (
        _of_numpy()[name].__get__(array) for name in ("nbytes", "shape", "dtype", "base")
    )
    start = int(_of_numpy()["__array_interface__"].__get__(array)["data"][0])  # 1 µs
    key = id(array) if base is None else start
    return HeapMemory(key, int(size), shape, _name_of(dtype), start, is_lent=base is not None)


def buffers_of(value: Any, kind: Kind) -> Iterator[HeapMemory]:
    """Yield the buffers of a table of Arrow, or one for a frame of polars, an image or shared memory."""
    fields = fields_of(value)
    if kind == "PIL":
        # An opened image has none before it is loaded.
        if (image := fields.get("_im", fields.get("im"))) is not None:
            size = math.prod(image.size) * _BYTES_OF_MODES.get(image.mode[:4], 4)
            yield HeapMemory(id(image), size, image.size, image.mode)
        return
    if kind == "shared memory":
        if (pages := fields["_mmap"]) is not None:  # else it is closed
            start, name = addressof(c_char.from_buffer(pages)), fields["_name"].lstrip("/")
            yield HeapMemory(id(pages), len(pages), (), name, start, is_lent=True)
        return
    shape = tuple(getattr(value, "shape", None) or (len(value),))
    if kind == "polars":
        inner = fields["_df" if len(shape) > 1 else "_s"]
        yield HeapMemory(id(inner), int(inner.estimated_size()), shape)
        return
    held = getattr(value, "type", None)  # a user's own type would run its code for a name
    dtype = str(held) if type(held).__module__ == "pyarrow.lib" else ""
    for column in getattr(value, "columns", [value]):
        for chunk in getattr(column, "chunks", [column]):
            for buffer in chunk.buffers():
                if buffer is not None and buffer.is_cpu and buffer.size:
                    start = buffer.address
                    yield HeapMemory(start, buffer.size, shape, dtype, start, is_lent=True)


def lent_or_shared(tensor: Any) -> tuple[int, bool]:
    """Return the address of memory lent to PyTorch, or 0, and whether its own is shared or mapped."""
    is_shared = False
    try:
        storage = tensor.untyped_storage()
        is_shared = bool(storage.is_shared())
        return 0 if storage.resizable() else max(address_of(tensor, storage), 0), is_shared
    except Exception:  # noqa: BLE001  (an odd tensor)
        return 0, is_shared


def _of_numpy() -> Any:
    return vars(type_in("numpy", "ndarray") or object)
