"""The meta device, observed: the bytes of live tensors, and the values of small ones.

Meta tensors have storages with a size and no memory. Python and autograd hold and drop them like real ones,
so the highest sum of their bytes is what a device would have to give.

They have no values, and code that asks for values (how many tokens stand for images, which of them go to an
expert) would fail. So each small tensor that follows from the batch alone (tokens, masks, the grids of
images) has a copy with values on the host, and every operation on such tensors is done to the copies too.
The expert of a token follows from weights; tokens are spread evenly over experts, and whatever depends on it
is marked as assumed.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from hfmem_widget.features.fit.allocator import Event, Heap, Moment, Played, play, round_up
from hfmem_widget.features.fit.workspaces import within

MOST: Final = 1 << 22  # elements of the largest tensor whose values are kept

_NAME: Final = "_hfmem_known"
_ATEN: Final = torch.ops.aten
_COPY: Final = _ATEN._to_copy.default  # noqa: SLF001  (an operator's name, not a private one)
_CHOOSING: Final = {_ATEN.index.Tensor, _ATEN.nonzero.default, _ATEN.masked_select.default, _COPY}
_UNSET: Final = {_ATEN.empty, _ATEN.empty_like, _ATEN.new_empty, _ATEN.empty_strided}
_IN_PLACE: Final = {
    _ATEN.scatter_add.default: _ATEN.scatter_add_.default,
    _ATEN.scatter.src: _ATEN.scatter_.src,
    _ATEN.index_put.default: _ATEN.index_put_.default,
}
"""Operations that autograd does in place on zeros it has just made; of meta tensors it makes copies."""


class Values(NamedTuple):
    """A tensor's values, and whether they are assumed."""

    host: torch.Tensor
    assumed: bool = False


def values_of(tensor: torch.Tensor) -> Values | None:
    """Return the known values of a tensor; those of a tensor on the host always are."""
    if not tensor.is_meta:
        return Values(tensor) if tensor.device.type == "cpu" else None
    values: Values | None = tensor.__dict__.get(_NAME)
    return values


def remember(tensor: torch.Tensor, values: Values | None) -> None:
    """Attach its values to a meta tensor; None removes them."""
    setattr(tensor, _NAME, values)


class KnownValues:
    """Does operations on meta tensors, and on their values where these are known."""

    def __init__(self) -> None:
        self.assumed = False  # whether any shape or decision followed from an assumption

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do an operation, and return its results."""
        tensors = _tensors(args, kwargs)
        if not (any(one.is_meta for one in tensors) if tensors else device_in(kwargs) == "meta"):
            return _from_host(func, args, kwargs, tensors)
        if func in _CHOOSING:
            for mask in tensors[-1 if func is _ATEN.masked_select.default else 0 :]:
                _choose_all(mask)
        values = [values_of(tensor) for tensor in tensors]
        all_known = all(one is not None for one in values)
        if func is _ATEN._local_scalar_dense.default:  # noqa: SLF001  (an operator's name)
            # Nothing is padded, packed or out of range.
            one = Values(torch.ones((), dtype=tensors[0].dtype))
            return self._used(values[0] or one).item()
        if func is _COPY and device_in(kwargs) == "cpu" and values[0] is not None:
            return self._used(values[0]).to(kwargs.get("dtype") or tensors[0].dtype, copy=True)
        if torch.Tag.dynamic_output_shape in func.tags or func is _ATEN.index.Tensor:
            if all_known:
                return self._of_known(func, args, kwargs, values)
            func, args = self._resolved(func, args)
        if not all(tensor.is_meta for tensor in tensors):
            args, kwargs = tree_map(_on_meta, (args, kwargs))
        result = func(*args, **kwargs)
        if all_known:
            self._follow(func, args, kwargs, result, values)
        else:
            _forget_changed(func, args, kwargs)
            self._assume(func, args, kwargs, result)
        return result

    def _used(self, values: Values) -> torch.Tensor:
        self.assumed |= values.assumed
        return values.host

    def _of_known(self, func: Any, args: Any, kwargs: Any, values: list[Any]) -> Any:
        """Return results whose shapes depend on values, as meta tensors."""
        assumed = any(one.assumed for one in values)
        self.assumed |= assumed

        def on_meta(host: Any) -> Any:
            if not isinstance(host, torch.Tensor):
                return host
            ghost = torch.empty_strided(host.shape, host.stride(), dtype=host.dtype, device="meta")
            remember(ghost, Values(host, assumed))
            return ghost

        return tree_map(on_meta, func(*tree_map(_host, args), **tree_map(_host, kwargs)))

    def _resolved(self, func: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """Return an operation with the indices of its masks in their place."""
        if func is _ATEN.masked_select.default and (chosen := values_of(args[1])) is not None:
            whole, mask = torch.broadcast_tensors(*args)
            remember(mask, Values(self._used(chosen).expand(mask.shape)))
            func, args = _ATEN.index.Tensor, (whole, [mask])
        if func is not _ATEN.index.Tensor:
            return func, args
        indices: list[Any] = []
        for index in args[1]:
            values = None if index is None else values_of(index)
            if index is None or index.dtype not in {torch.bool, torch.uint8}:
                indices.append(index)
            elif values is None:
                self.assumed = True
                indices += [index.new_empty(index.numel(), dtype=torch.int64)] * index.dim()
            else:
                places = self._used(values).nonzero()
                indices += [places[:, at].to("meta") for at in range(index.dim())]
        return func, (args[0], indices)

    def _follow(self, func: Any, args: Any, kwargs: Any, result: Any, values: list[Any]) -> None:
        """Attach the values of an operation's results, by the same operation on the host."""
        results = _tensors(result)
        is_unset = func.overloadpacket in _UNSET
        if is_unset and results[0].is_floating_point():
            return
        is_large = any(tensor.numel() > MOST for tensor in results)
        if torch.Tag.nondeterministic_seeded in func.tags or is_large:
            _forget_changed(func, args, kwargs)
            return
        on_host = tree_map(_host, kwargs)
        if device_in(kwargs) == "meta":
            on_host["device"] = "cpu"
        try:
            copies = _tensors(func(*tree_map(_host, args), **on_host))
        except (RuntimeError, IndexError, NotImplementedError):
            _forget_changed(func, args, kwargs)
            return
        assumed = any(known.assumed for known in values)
        for tensor, copy in zip(results, copies, strict=True):
            if tensor.is_meta:
                if is_unset:
                    copy.zero_()
                remember(tensor, Values(copy, assumed))

    def _assume(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Assume results of unknown values: all differ, and choices are spread evenly."""
        packet = func.overloadpacket
        if packet in {_ATEN.eq, _ATEN.ne} and result.numel() <= MOST:
            # No unknown value is a special one, such as the zeros of a missing image.
            different = torch.full(result.shape, packet is _ATEN.ne)
            remember(result, Values(different, assumed=True))
        if packet not in {_ATEN.topk, _ATEN.argmax, _ATEN.sort}:
            return
        places = result if packet is _ATEN.argmax else result[1]
        scores, count = args[0], places.numel()
        if count > MOST or not scores.dim() or not places.dim():
            return
        arguments = args[2:3] if packet is _ATEN.topk else args[1:2]
        dim = kwargs.get("dim", arguments[0] if arguments else -1)
        if packet is _ATEN.sort:
            order = torch.arange(scores.shape[dim])
            shape = [1] * scores.dim()
            shape[dim] = -1
            even = order.view(shape).expand(places.shape).clone()
        else:
            even = (torch.arange(count) % max(1, scores.shape[dim or 0])).view(places.shape)
        remember(places, Values(even, assumed=True))


def _choose_all(mask: torch.Tensor) -> None:
    """Set a mask of unknown values: no more memory could be needed."""
    if mask.dtype == torch.bool and values_of(mask) is None and mask.numel() <= MOST:
        remember(mask, Values(torch.ones(mask.shape, dtype=torch.bool), assumed=True))


def _from_host(func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
    result = func(*args, **kwargs)
    if func is _ATEN.rand.default:
        result.fill_(1 - 2**-24)  # the highest, so that no layer is left out by chance
    if func is _COPY and device_in(kwargs) == "meta" and tensors[0].numel() <= MOST:
        remember(result, Values(tensors[0].to(result.dtype, copy=True)))
    return result


def _tensors(*values: Any) -> list[torch.Tensor]:
    # As pytree's `tree_leaves`, which takes several times as long: every operation comes here.
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple | dict):
            found += _tensors(*(value.values() if isinstance(value, dict) else value))
    return found


def device_in(kwargs: dict[str, Any]) -> str:
    """Return the type of device that an operation is asked for; empty if none."""
    device = kwargs.get("device")
    return "" if device is None else torch.device(device).type


def _host(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    values = values_of(value)
    return value if values is None else values.host


def _on_meta(value: Any) -> Any:
    """Return a host's tensor on the meta device: a GPU's kernels take numbers and indices from the host."""
    is_here = isinstance(value, torch.Tensor) and value.device.type == "cpu"
    return meta_copy(value) if is_here else value


def _forget_changed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Forget the values of tensors that an operation has overwritten with unknown ones."""
    if not func._schema.is_mutable:  # noqa: SLF001  (nowhere public)
        return
    for at, argument in enumerate(func._schema.arguments):  # noqa: SLF001
        if argument.alias_info is not None and argument.alias_info.is_write:
            for tensor in _tensors(args[at] if at < len(args) else kwargs.get(argument.name)):
                if tensor.is_meta:
                    remember(tensor, None)


def meta_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a fresh meta tensor like one on the host, with its values, or like one on the meta device."""
    ghost = torch.empty_like(tensor, device="meta")
    if not tensor.is_meta:
        remember(ghost, Values(tensor.clone()))
    return ghost


def storage_id(tensor: torch.Tensor) -> int:
    """Return the identity of a tensor's storage."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001  (the identity of a storage is nowhere public)


class LiveBytes(TorchDispatchMode):  # type: ignore[misc]  # torch is not followed, so its classes are Any
    """Records the `events` of all storages made while it is active, in order.

    A value that only a device could know is taken to be 1 or True: the mask is full, nothing is packed.
    Storages are rounded up to `granularity` bytes. `now` are the bytes alive. `known` follows the values
    that depend on the batch alone.
    """

    def __init__(self, granularity: int = 1, device: str = "meta") -> None:
        super().__init__()
        self._device = device
        self.now = 0
        self.known = KnownValues()
        self.events: list[Event] = []
        self._granularity = granularity
        self._numbers: dict[int, int] = {}
        self._storages: dict[int, object] = {}
        self._held: set[int] = set()
        self.in_backward = False
        self._zeros = 0

    def leave_out(self, tensors: Iterable[torch.Tensor]) -> None:
        """Do not count existing tensors."""
        for tensor in tensors:
            # Kept, so that no later storage gets the same address, and with it the same key.
            self._storages[storage_id(tensor)] = tensor.untyped_storage()

    def hold(self, tensors: Iterable[object]) -> int:
        """Count tensors as alive to the end of the events, since a loop keeps them; return their bytes.

        `now` counts them only while the model uses them.
        """
        keys = {storage_id(tensor) for tensor in tensors if isinstance(tensor, torch.Tensor)}
        numbers = {self._numbers[key] for key in keys if key in self._numbers}
        self._held |= numbers
        return sum(self.events[number][2] for number in numbers)

    def mark(self, tensor: torch.Tensor) -> None:
        """Count a tensor as marked from now on."""
        if (number := self._numbers.get(storage_id(tensor))) is not None:
            self.events.append((Moment.MARKED, number, 0))

    def restart(self) -> None:
        """Begin a new peak at the bytes alive now."""
        self.events.append((Moment.RESTARTED, 0, 0))

    def played(self) -> Played:
        """Replay the events with bytes of its own for each storage."""
        return play(self.events, Heap())

    @property
    def peak(self) -> int:
        """The highest bytes since the last restart."""
        return self.played().peaks[-1].bytes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # Kernels of the meta device are written in Python: their operations are not the program's.
        with torch._C.DisableTorchFunction():  # noqa: SLF001  (no public way)
            return self._recorded(func, args, kwargs or {})

    def _recorded(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        is_of_autograd = self.in_backward and func in _IN_PLACE and not torch.is_grad_enabled()
        if is_of_autograd and storage_id(args[0]) == self._zeros:
            func = _IN_PLACE[func]
        out = self.known(func, args, kwargs)
        self._zeros = storage_id(out) if func is _ATEN.new_zeros.default else 0
        for tensor in _tensors(out):
            self._add(tensor)
        if besides := within(func, args, out, on_gpu=self._granularity > 1):
            self.events.append((Moment.BESIDES, 0, besides))
        return out

    def _add(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != self._device:
            return
        key, storage = storage_id(tensor), tensor.untyped_storage()
        if key in self._storages:
            return
        size, number = round_up(storage.nbytes(), self._granularity), len(self.events)
        self.now += size
        self.events.append((Moment.MADE, number, size))
        self._numbers[key] = number

        def gone(_: object) -> None:
            self.now -= size
            self._storages.pop(key, None)
            if number not in self._held:
                self.events.append((Moment.GONE, number, 0))

        self._storages[key] = weakref.ref(storage, gone)
