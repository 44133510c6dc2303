"""What the cause of an out-of-memory error calls for; a rule speaks only where the incident has a reason."""

from __future__ import annotations

import math

from hfmem_widget.features.oom.diagnosis import OTHERS_FROM
from hfmem_widget.features.oom.model import Advice, Cause, Incident, Rule
from hfmem_widget.features.oom.places import in_attention, in_loss
from hfmem_widget.text import GIB, MIB, format_count, size_text

VARIES_FROM = 1.5
"""Times the shortest: where the longest sequence is, no two steps ask for the same sizes."""

KEPT_FROM = 256 * MIB


def _expandable(incident: Incident) -> Advice | None:
    if incident.blocks is not None and incident.blocks.expandable:
        return None
    pieces = incident.largest_free
    return Advice(
        "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before CUDA is initialised (in a new kernel)",
        "expandable segments grow instead of being cut into pieces"
        + (f"; the largest free piece is {size_text(pieces)}" if pieces > 0 else ""),
        f"up to {size_text(incident.slack)}",
        incident.slack,
    )


def _even_lengths(incident: Incident) -> Advice | None:
    if len(incident.lengths) != 2 or incident.lengths[1] < VARIES_FROM * incident.lengths[0]:
        return None
    shortest, longest = map(format_count, incident.lengths)
    return Advice(
        "Pad to a few fixed lengths, or group sequences by length",
        f"the longest sequence of a step has {shortest} to {longest} tokens; each new length cuts new pieces",
    )


def _release_pools(incident: Incident) -> Advice | None:
    held = incident.blocks.private_free if incident.blocks is not None else 0.0
    if not held >= incident.asked:
        return None
    return Advice(
        "Free CUDA graphs or memory pools that are no longer used",
        "their private pools hold free memory that nothing else may use",
        size_text(held),
        held,
    )


def _end_processes(incident: Incident) -> Advice | None:
    if not incident.others >= OTHERS_FROM * incident.total:
        return None
    biggest = sorted(incident.processes, key=lambda one: one[1], reverse=True)[:3]
    named = ", ".join(f"process {pid} ({size_text(size)})" for pid, size in biggest)
    return Advice(
        "Stop other processes on the GPU" + (f": {named}" if named else _who_names_them(incident)),
        "another notebook's kernel holds its memory until it is shut down",
        "" if named else size_text(incident.others),
        incident.others,
    )


def _who_names_them(incident: Incident) -> str:
    return "; nvidia-smi lists them" if incident.device.key.startswith("cuda") else ""


def _raise_limit(incident: Incident) -> Advice | None:
    if incident.on_the_host:
        return Advice(
            f"Raise the limit ({incident.host.command}, or the memory of the batch job)",
            f"this process may map {size_text(incident.host.limit)} in total",
        )
    needed = incident.reserved + incident.asked
    share = (
        min(1.0, math.ceil(20 * needed / incident.total) / 20) if needed < incident.total else 1.0
    )
    return Advice(
        f"Raise the limit: torch.cuda.set_per_process_memory_fraction({share:g})",
        f"{size_text(incident.free)} of the device is free, but this process may not use it",
    )


def _stop_growth(incident: Incident) -> Advice | None:
    finding = incident.growth
    if finding is None:
        return None
    grown = finding.evidence.get("grown")
    known = float(grown) if isinstance(grown, int | float) else 0.0
    return Advice(
        "Free what accumulates from step to step; %memholders lists what holds it",
        "a loss stored with its graph, a list of outputs or a cache grows with every step "
        "(loss.item() is only the number)",
        size_text(known),
        known,
    )


def _give_cache_back(incident: Incident) -> Advice | None:
    if not incident.beside_the_allocator or not incident.cache >= GIB / 4:
        return None
    return Advice(
        "Release PyTorch's cache beforehand: torch.cuda.empty_cache()",
        "the library asked the driver, which cannot hand out memory that PyTorch has reserved",
        f"up to {size_text(incident.cache)}",
        incident.cache,
    )


def _in_pieces(incident: Incident) -> Advice | None:
    if in_attention(incident) or in_loss(incident):
        return None
    if incident.asked > incident.total > 0:
        times = incident.asked / incident.total
        return Advice(
            "Check the shape of the tensor, or process it in chunks",
            f"a single request {_times(times)} {_whose(incident)} memory is usually a shape mistake",
        )
    return Advice("Process it in chunks", "a smaller request would have fit")


def left_behind(incident: Incident) -> Advice | None:
    """Return what to do about what is still allocated after the cell."""
    kept = incident.left_behind
    if incident.on_the_host or kept < KEPT_FROM:
        return None
    return Advice(
        "Run %memfree errors before the next attempt; %memholders lists what else is held",
        f"{size_text(kept)} more than before the cell is still allocated; the traceback of the last "
        "error holds the tensors of its functions",
        f"up to {size_text(kept)}",
        kept,
    )


def _times(factor: float) -> str:
    return f"{format_count(factor)}\u00d7" if factor >= 10 else f"{factor:.1f}\u00d7"


def _whose(incident: Incident) -> str:
    return "the machine's" if incident.on_the_host else "the GPU's"


REMEDIES: dict[Cause, tuple[Rule, ...]] = {
    "fragmentation": (_expandable, _even_lengths, _release_pools),
    "leak": (_stop_growth,),
    "limit": (_raise_limit,),
    "huge": (_in_pieces,),
    "others": (_end_processes,),
    "full": (_give_cache_back,),
    "unknown": (),
}
"""What each cause calls for, the most useful first."""
