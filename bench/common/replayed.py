"""What one training step really had in memory: its storages, and a replay of what the allocator handed out.

On a GPU the allocator's own trace is replayed, by requested bytes; on the CPU, where it keeps none, what it
reports to torch's profiler. Imported by the scripts in the folder above.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

MOST_ENTRIES = 1_000_000

Event = tuple[int, int]
"""``(address, bytes)``; the bytes are negative where they are given back."""


@dataclass(frozen=True, slots=True)
class Truth:
    """Bytes on the device.

    Attributes
    ----------
    weights, gradients, optimizer : int
        Of all storages, when the optimizer's step has ended and before gradients are cleared.
    activations : int
        What the step had allocated and held at its peak, less the gradients among it.
    gradients_at_peak : int
        Those gradients.
    peak : int
        All of it, with what was there when the step began.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    gradients_at_peak: int
    peak: int


def truth_of(
    step: Callable[[], object],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Iterable[torch.Tensor],
) -> Truth:
    """Make one step that leaves its gradients, and return what it had in memory.

    Parameters
    ----------
    step : callable
        Forward, backward and an optimizer's step that makes no new states; there are no gradients yet.
    model, optimizer : torch.nn.Module, torch.optim.Optimizer
    batch : iterable of torch.Tensor
        What else there is where nobody counts what was handed out.
    """
    parameters = list(model.parameters())
    on = parameters[0].device
    states = [
        one for state in optimizer.state.values() for one in state.values() if one.device == on
    ]
    held = (
        torch.cuda.memory_stats()["requested_bytes.all.current"]
        if on.type == "cuda"
        else bytes_of([*parameters, *model.buffers(), *states, *batch])
    )
    events = list(_traced(step) if on.type == "cuda" else _reported(step))
    gradients = storages_of(one.grad for one in parameters if one.grad is not None)
    net, made, of_gradients = _at_peak(events, set(gradients))
    return Truth(
        weights=bytes_of(parameters),
        gradients=sum(gradients.values()),
        optimizer=bytes_of(states),
        activations=made - of_gradients,
        gradients_at_peak=of_gradients,
        peak=held + net,
    )


def storages_of(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Return the bytes of each storage, by its address."""
    storages = (one.untyped_storage() for one in tensors)
    return {one.data_ptr(): one.nbytes() for one in storages}


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Return what tensors keep, each storage once."""
    return sum(storages_of(tensors).values())


def _at_peak(events: Sequence[Event], gradients: set[int]) -> tuple[int, int, int]:
    """Return, at the highest: growth since the beginning, what was made since then, gradients among that."""
    now = highest = 0
    place = 0
    for at, (_, size) in enumerate(events, start=1):
        now += size
        if now > highest:
            highest, place = now, at
    live: dict[int, int] = {}
    for address, size in events[:place]:
        if size > 0:
            live[address] = size
        else:
            live.pop(address, None)
    # A gradient is what was never given back: its address may have been something else's before.
    given_back = {address for address, size in events[place:] if size < 0}
    kept = sum(size for address, size in live.items() if address in gradients - given_back)
    return highest, sum(live.values()), kept


def _traced(step: Callable[[], object]) -> Iterator[Event]:
    torch.cuda.synchronize()
    torch.cuda.memory._record_memory_history(max_entries=MOST_ENTRIES, context=None)  # noqa: SLF001  (no public one)
    try:
        step()
        torch.cuda.synchronize()
        entries = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]  # noqa: SLF001
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)  # noqa: SLF001
    for entry in entries:
        if entry["action"] == "alloc":
            yield entry["addr"], entry["size"]
        elif entry["action"] == "free_requested":
            yield entry["addr"], -entry["size"]


def _reported(step: Callable[[], object]) -> Iterator[Event]:
    from torch._C._profiler import _EventType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    pending = list(profiler.profiler.kineto_results.experimental_event_tree())
    found = []
    while pending:
        event = pending.pop()
        pending += event.children
        if event.typed[0] == _EventType.Allocation:
            fields = event.typed[1]
            if fields.device.type == "cpu":
                found.append((event.start_time_ns, fields.ptr, fields.alloc_size))
    # A free and an allocation of one instant: in the order of the tree they would mix.
    found.sort(key=lambda one: one[0])
    for _, address, size in found:
        yield address, size
