"""The meta device, observed: the bytes of live tensors, and the whole numbers that are known.

Meta tensors have storages with a size and no memory. They come and go as real ones would, since Python and
autograd hold and drop them alike. So the highest sum is what a device would have had to give.

They have no values, and code that asks for some (how many tokens stand for images, which of them go to an
expert) would stop there. So each small tensor that follows from the batch alone (tokens, masks, the grids of
images) has a copy with values on the host, and every operation on such tensors is done to the copies too.
Which expert a token goes to follows from weights; there tokens are spread evenly, and what depends on it is
marked as assumed.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from hfmem_widget.features.fit.allocator import Event, Heap, Moment, Played, play
from hfmem_widget.features.fit.workspaces import within

MOST: Final = 1 << 22  # elements of a tensor whose values are kept

_HIGHEST_CHANCE: Final = 1 - 2**-24  # what the host draws, so that no layer is left out by chance
_NAME: Final = "_hfmem_known"
_ATEN: Final = torch.ops.aten
_ITEM: Final = _ATEN._local_scalar_dense.default  # noqa: SLF001  (an operator's name, not a private one)
_COPY: Final = _ATEN._to_copy.default  # noqa: SLF001  (likewise)
_CHOOSING: Final = {_ATEN.index.Tensor, _ATEN.nonzero.default, _ATEN.masked_select.default, _COPY}
_COMPARING: Final = {_ATEN.eq, _ATEN.ne}
_UNSET: Final = {_ATEN.empty, _ATEN.empty_like, _ATEN.new_empty, _ATEN.empty_strided}
_ZEROS: Final = _ATEN.new_zeros.default
_IN_PLACE: Final = {
    _ATEN.scatter_add.default: _ATEN.scatter_add_.default,
    _ATEN.scatter.src: _ATEN.scatter_.src,
    _ATEN.index_put.default: _ATEN.index_put_.default,
}
"""What autograd does to the zeros that it has just made: of meta tensors it makes others instead."""


class Values(NamedTuple):
    """A tensor's values, and whether they are assumed."""

    host: torch.Tensor
    assumed: bool = False


def values_of(tensor: torch.Tensor) -> Values | None:
    """Return what is known of a tensor; of one on the host everything is."""
    if not tensor.is_meta:
        return Values(tensor) if tensor.device.type == "cpu" else None
    values: Values | None = tensor.__dict__.get(_NAME)
    return values


def remember(tensor: torch.Tensor, values: Values | None) -> None:
    """Keep the values of a meta tensor with it, or forget them."""
    setattr(tensor, _NAME, values)


class Knowing:
    """Does operations on meta tensors, and on their values where these are known."""

    def __init__(self) -> None:
        self.assumed = False  # whether any shape or decision followed from an assumption

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do an operation, and return its results."""
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        if not (any(one.is_meta for one in given) if given else device_in(kwargs) == "meta"):
            return _to_meta(func, args, kwargs, given)
        if func in _CHOOSING:
            for tensor in given[-1 if func is _ATEN.masked_select.default else 0 :]:
                _choose_all(tensor)
        values = [values_of(tensor) for tensor in given]
        everything = all(tensor is not None for tensor in values)
        if func is _ITEM:
            # Nothing is padded, packed or out of range.
            one = Values(torch.ones((), dtype=given[0].dtype))
            return self._used(values[0] or one).item()
        if func is _COPY and device_in(kwargs) == "cpu" and values[0] is not None:
            return self._used(values[0]).to(kwargs.get("dtype") or given[0].dtype, copy=True)
        if torch.Tag.dynamic_output_shape in func.tags or func is _ATEN.index.Tensor:
            if everything:
                return self._ghosts(func, args, kwargs, values)
            func, args = self._resolved(func, args)
        if not all(tensor.is_meta for tensor in given):
            args, kwargs = tree_map(_on_meta, (args, kwargs))
        made = func(*args, **kwargs)
        if everything:
            self._follow(func, args, kwargs, made, values)
        else:
            _forget_changed(func, args, kwargs)
            self._assume(func, args, kwargs, made)
        return made

    def _used(self, values: Values) -> torch.Tensor:
        self.assumed |= values.assumed
        return values.host

    def _ghosts(self, func: Any, args: Any, kwargs: Any, values: list[Any]) -> Any:
        """Return the results, whose shapes depend on values, as meta tensors."""
        assumed = any(one.assumed for one in values)
        self.assumed |= assumed
        real = func(*tree_map(_host, args), **tree_map(_host, kwargs))

        def ghost(real_result: Any) -> Any:
            if not isinstance(real_result, torch.Tensor):
                return real_result
            made = torch.empty_strided(
                real_result.shape, real_result.stride(), dtype=real_result.dtype, device="meta"
            )
            remember(made, Values(real_result, assumed))
            return made

        return tree_map(ghost, real)

    def _resolved(self, func: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """Return an operation with the masks that it takes as the places where they are set."""
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

    def _follow(self, func: Any, args: Any, kwargs: Any, made: Any, values: list[Any]) -> None:
        results = [one for one in tree_leaves(made) if isinstance(one, torch.Tensor)]
        if func.overloadpacket in _UNSET and results[0].is_floating_point():
            return
        is_large = any(one.numel() > MOST for one in results)
        if torch.Tag.nondeterministic_seeded in func.tags or is_large:
            _forget_changed(func, args, kwargs)
            return
        try:
            real = func(*tree_map(_host, args), **_on_host(kwargs))
        except (RuntimeError, IndexError, NotImplementedError):
            _forget_changed(func, args, kwargs)
            return
        copies = [one for one in tree_leaves(real) if isinstance(one, torch.Tensor)]
        assumed = any(one.assumed for one in values)
        for result, copy in zip(results, copies, strict=True):
            if result.is_meta:
                if func.overloadpacket in _UNSET:
                    copy.zero_()
                remember(result, Values(copy, assumed))

    def _assume(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        """Spread what is chosen by unknown values evenly."""
        packet = func.overloadpacket
        if packet in _COMPARING and made.numel() <= MOST:
            # No unknown value is a special one, such as the zeros of an image that is none.
            same = torch.full(made.shape, packet is _ATEN.ne)
            remember(made, Values(same, assumed=True))
        if packet not in {_ATEN.topk, _ATEN.argmax, _ATEN.sort}:
            return
        places = made if packet is _ATEN.argmax else made[1]
        scores, count = args[0], places.numel()
        if count > MOST or not scores.dim() or not places.dim():
            return
        given = args[2:3] if packet is _ATEN.topk else args[1:2]
        dim = kwargs.get("dim", given[0] if given else -1)
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


def _to_meta(func: Any, args: Any, kwargs: Any, given: list[torch.Tensor]) -> Any:
    made = func(*args, **kwargs)
    if func is _ATEN.rand.default:
        made.fill_(_HIGHEST_CHANCE)
    if func is _COPY and device_in(kwargs) == "meta" and given[0].numel() <= MOST:
        remember(made, Values(given[0].to(made.dtype, copy=True)))
    return made


def device_in(kwargs: dict[str, Any]) -> str:
    """Return the type of device that an operation is asked for; empty where it is not."""
    device = kwargs.get("device")
    return "" if device is None else torch.device(device).type


def _host(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    values = values_of(value)
    return value if values is None else values.host


def _on_host(kwargs: dict[str, Any]) -> dict[str, Any]:
    on_host: dict[str, Any] = tree_map(_host, kwargs)
    return on_host | {"device": "cpu"} if device_in(kwargs) == "meta" else on_host


def _on_meta(value: Any) -> Any:
    """Return a ghost of a tensor of the host: kernels of a GPU take numbers and indices from there."""
    is_here = isinstance(value, torch.Tensor) and value.device.type == "cpu"
    return torch.empty_like(value, device="meta") if is_here else value


def _forget_changed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Forget the values of what an operation has overwritten with unknown ones."""
    if not func._schema.is_mutable:  # noqa: SLF001  (nowhere public)
        return
    for at, argument in enumerate(func._schema.arguments):  # noqa: SLF001
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[at] if at < len(args) else kwargs.get(argument.name)
            for tensor in tree_leaves(value):
                if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                    remember(tensor, None)


def spread(tensor: torch.Tensor) -> torch.Tensor:
    """Return a fresh meta tensor like one on the host, with its values, or like one on the meta device."""
    made = torch.empty_like(tensor, device="meta")
    if not tensor.is_meta:
        remember(made, Values(tensor.clone()))
    return made


def storage_id(tensor: torch.Tensor) -> int:
    """Return the identity of a tensor's storage."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001  (the identity of a storage is nowhere public)


class LiveBytes(TorchDispatchMode):  # type: ignore[misc]  # torch is not followed, so its classes are Any
    """What happens to all storages made while it is active, in order: its `events`.

    A value that only a device could know is taken to be 1 or True: the mask is full, nothing is packed. Each
    storage is rounded up to a granularity. `now` are the bytes alive. The values that follow from the batch
    are known to `knowing`.
    """

    def __init__(self, granularity: int = 1, device: str = "meta") -> None:
        super().__init__()
        self._device = device
        self.now = 0
        self.knowing = Knowing()
        self.events: list[Event] = []
        self._granularity = granularity
        self._numbers: dict[int, int] = {}
        self._storages: dict[int, object] = {}
        self._held: set[int] = set()
        self.in_backward = False
        self._zeros = 0

    def leave_out(self, tensors: Iterable[torch.Tensor]) -> None:
        """Do not count tensors that were there before."""
        for tensor in tensors:
            # Kept, so that no later storage takes its place in memory, and in here.
            self._storages[storage_id(tensor)] = tensor.untyped_storage()

    def hold(self, tensors: Iterable[object]) -> int:
        """Count tensors as alive to the end of the events, since the caller keeps them; return their bytes.

        `now` counts them only while the model uses them.
        """
        keys = {storage_id(one) for one in tensors if isinstance(one, torch.Tensor)}
        numbers = {self._numbers[key] for key in keys if key in self._numbers}
        self._held |= numbers
        return sum(self.events[number][2] for number in numbers)

    def mark(self, tensor: torch.Tensor) -> None:
        """Count a tensor as marked from now on."""
        if (number := self._numbers.get(storage_id(tensor))) is not None:
            self.events.append((Moment.MARKED, number, 0))

    def rounded(self, size: int) -> int:
        """Return a size as a multiple of the granularity."""
        return -(-size // self._granularity) * self._granularity

    def restart(self) -> None:
        """Begin a new peak at what is alive now."""
        self.events.append((Moment.RESTARTED, 0, 0))

    def played(self) -> Played:
        """Return what came of the events, where each storage gets its own bytes."""
        return play(self.events, Heap())

    @property
    def peak(self) -> int:
        """The highest bytes since the last restart."""
        return self.played().peaks[-1].bytes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        is_of_autograd = self.in_backward and func in _IN_PLACE and not torch.is_grad_enabled()
        if is_of_autograd and storage_id(args[0]) == self._zeros:
            func = _IN_PLACE[func]
        out = self.knowing(func, args, kwargs or {})
        self._zeros = storage_id(out) if func is _ZEROS else 0
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._add(leaf)
        if besides := within(func, args, out, on_gpu=self._granularity > 1):
            self.events.append((Moment.BESIDES, 0, besides))
        return out

    def _add(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != self._device:
            return
        key, storage = storage_id(tensor), tensor.untyped_storage()
        if key in self._storages:
            return
        size, number = self.rounded(storage.nbytes()), len(self.events)
        self.now += size
        self.events.append((Moment.MADE, number, size))
        self._numbers[key] = number

        def gone(_: object) -> None:
            self.now -= size
            self._storages.pop(key, None)
            if number not in self._held:
                self.events.append((Moment.GONE, number, 0))

        self._storages[key] = weakref.ref(storage, gone)
