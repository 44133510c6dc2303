"""What to change after an out-of-memory error: only what has a reason in the incident, best first."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hfmem_widget.features.oom.diagnosis import limit
from hfmem_widget.features.oom.model import Advice, Cache, Cause, Diagnosis, Incident
from hfmem_widget.features.oom.places import running, to_come
from hfmem_widget.features.oom.savings import of_states, savings
from hfmem_widget.text import GIB, MIB, format_count, size_text, torch_module

MOST = 5
VARIES_FROM = 1.5  # the longest sequence by the shortest; then no two steps request the same sizes
KEPT_FROM = 256 * MIB
BEFORE_A_LIMIT = frozenset({"another model", "graphs", "leak", "kv cache", "training", "long rows"})
ENOUGH = (BEFORE_A_LIMIT | {"fragmentation"}) - {"long rows"}


def advise(incident: Incident, diagnosis: Diagnosis) -> tuple[Advice, ...]:
    """Return what the diagnosis calls for, then what saves most."""
    first = list(remedies(incident, diagnosis.cause))
    # After these nothing need be made smaller, once they have a remedy.
    is_enough = first and diagnosis.cause in ENOUGH
    more = sorted(
        [] if is_enough else savings(incident), key=lambda advice: advice.bytes, reverse=True
    )
    last = list(_left_behind(incident))
    if diagnosis.cause in BEFORE_A_LIMIT and limit(incident) is not None:
        last.insert(0, _raise_limit(incident))
    return (*[*first, *more][: MOST - len(last)], *last)


def remedies(incident: Incident, cause: Cause) -> Iterator[Advice]:
    """Yield what a cause calls for, the most useful first."""
    if cause == "fragmentation":
        yield from _of_fragmentation(incident)
    elif cause in BEFORE_A_LIMIT:
        yield from _of_what_was_seen(incident, cause)
    elif cause == "limit":
        yield _raise_limit(incident)
    elif cause == "huge" and not (running(incident, "attention") or running(incident, "loss")):
        yield _in_chunks(incident)
    elif cause == "others":
        yield _stop_processes(incident)
    elif cause == "full" and incident.beside_the_allocator and incident.cache >= GIB / 4:
        yield Advice(
            f"Release PyTorch's cache beforehand: {torch_module(incident.device.key)}.empty_cache()",
            "the library asked the driver, which cannot hand out memory that PyTorch has reserved",
            f"up to {size_text(incident.cache)}",
            incident.cache,
        )


def _of_what_was_seen(incident: Incident, cause: Cause) -> Iterator[Advice]:
    if cause == "training":
        yield from sorted(of_states(incident), key=lambda advice: -advice.bytes)
    elif cause == "another model":
        yield Advice(
            f"Delete what an earlier run has left: {incident.seen.other_at}",
            "it is no part of what ran; a cell that is run again makes its model anew, beside the one before",
            size_text(incident.seen.other_bytes),
            incident.seen.other_bytes,
        )
    elif cause in {"leak", "graphs"} and (kept := incident.seen.kept):
        yield Advice(
            f"Store values in {kept.path}, without their graphs: .item() for one number, else .detach()",
            "a tensor with a graph holds everything that its backward pass needs",
            size_text(kept.bytes),
            kept.bytes,
        )
    elif cause == "leak":
        yield Advice(
            "Free what accumulates from step to step; %memholders lists what holds it",
            "a loss stored with its graph, a list of outputs or a cache grows with every step "
            "(loss.item() is only the number)",
            size_text(incident.known_growth),
            incident.known_growth,
        )
    elif cause == "kv cache" and (cache := incident.seen.cache):
        yield _less_cache(incident, cache)
    elif cause == "long rows":
        longest, usual = incident.count("longest"), incident.usual[1]
        saved = (1 - usual / longest) * incident.part("activations")
        yield Advice(
            f"Truncate to a shorter length (max_length={usual:.0f}), or group sequences by length",
            "a batch is padded to its longest sequence, so one long row makes all of its rows long",
            f"about {size_text(saved)}",
            saved,
        )


def _of_fragmentation(incident: Incident) -> Iterator[Advice]:
    blocks, largest = incident.blocks, incident.largest_free
    if blocks is None or not blocks.expandable:
        free = f"; the largest free piece is {size_text(largest)}" if largest > 0 else ""
        yield Advice(
            "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before CUDA is initialised (in a new "
            "kernel)",
            f"expandable segments grow instead of being cut into pieces{free}",
            f"up to {size_text(incident.slack)}",
            incident.slack,
        )
    if incident.lengths and incident.lengths[1] >= VARIES_FROM * incident.lengths[0]:
        shortest, longest = map(format_count, incident.lengths)
        yield Advice(
            "Pad to a few fixed lengths, or group sequences by length",
            f"the longest sequence of a step has {shortest} to {longest} tokens; each new length cuts new "
            "pieces",
        )
    if blocks is not None and blocks.private_free >= incident.asked:
        yield Advice(
            "Free CUDA graphs or memory pools that are no longer used",
            "their private pools hold free memory that nothing else may use",
            size_text(blocks.private_free),
            blocks.private_free,
        )


def _less_cache(incident: Incident, cache: Cache) -> Advice:
    room = incident.room_for_cache
    # Blocks that grow leave pieces behind, up to a second cache; temporaries of all rows had all the room.
    rows = int(cache.rows * room / (2 * cache.whole + room)) if cache.layers > 1 else 0
    size = size_text(rows * cache.whole / cache.rows)
    fewer = "Generate for fewer sequences at a time, or set" if cache.rows > 1 else "Set"
    return Advice(
        f"{fewer} a smaller max_new_tokens",
        f"about {format_count(rows)} of those {format_count(cache.rows)} sequences fit, prompt included: "
        f"their cache takes {size}, and the rest of the room is left for copies and temporaries"
        if rows
        else "the cache grows with each sequence and each token",
    )


def _stop_processes(incident: Incident) -> Advice:
    biggest = sorted(incident.processes, key=lambda process: -process[1])[:3]
    named = ", ".join(f"process {pid} ({size_text(size)})" for pid, size in biggest)
    listed = "; nvidia-smi lists them" if incident.device.key.startswith("cuda") else ""
    return Advice(
        "Stop other processes on the GPU" + (f": {named}" if named else listed),
        "another notebook's kernel holds its memory until it is shut down",
        "" if named else size_text(incident.others),
        incident.others,
    )


def _raise_limit(incident: Incident) -> Advice:
    if incident.on_the_host:
        return Advice(
            f"Raise the limit ({incident.host.command}, or the memory of the batch job)",
            f"this process may map {size_text(incident.host.limit)} in total",
        )
    needed = incident.reserved + max(incident.asked, to_come(incident))
    twentieths = math.ceil(20 * needed / incident.total) if needed < incident.total else 20
    module = torch_module(incident.device.key)
    return Advice(
        f"Raise the limit: {module}.set_per_process_memory_fraction({min(twentieths, 20) / 20:g})",
        f"{size_text(incident.free)} of the device is free, but this process may not use it",
    )


def _in_chunks(incident: Incident) -> Advice:
    if not incident.is_beyond:
        return Advice("Process it in chunks", "a smaller request would have fit")
    times = incident.asked / incident.total
    factor = format_count(times) if times >= 10 else f"{times:.1f}"
    whose = "the machine's" if incident.on_the_host else "the GPU's"
    return Advice(
        "Check the shape of the tensor, or process it in chunks",
        f"a single request {factor}\u00d7 {whose} memory is usually a shape mistake",
    )


def _left_behind(incident: Incident) -> Iterator[Advice]:
    """Yield what to do about what only the error still holds."""
    if incident.seen.freed >= KEPT_FROM:
        freed = size_text(incident.seen.freed)
        yield Advice(
            "Run %memfree errors before the next attempt; %memholders lists what else is held",
            f"the traceback of the last error alone holds {freed}",
            freed,
            incident.seen.freed,
        )
