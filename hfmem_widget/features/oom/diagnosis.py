"""Why memory ran out, in plain words: of the reasons that an incident shows, the one that decided."""

from __future__ import annotations

from hfmem_widget.analysis.parts import LABELS, OF_ALLOCATED
from hfmem_widget.analysis.readings import known_of
from hfmem_widget.features.oom.model import Diagnosis, Incident
from hfmem_widget.features.oom.places import gathering, pinning
from hfmem_widget.session import HELD
from hfmem_widget.text import size_text

GROWN_FROM = 0.15
"""From which share of what there is on growth is what filled it."""

FRAGMENTED_FROM = 0.1
"""From which share of what there is on free pieces are the reason; a few are always there."""

HUGE_FROM = 1 / 3
"""From which share of what there is on one request is the reason, whatever else there is."""

LARGE_FROM = 0.1
"""From which share of what there is on a request is large enough to be the reason at all."""

OTHERS_FROM = 0.1
"""From which share of a device on other processes are worth naming."""

OFTEN_FREE = 0.2
"""If so much is free and a request still fails, it was a huge one, even if it does not say how large."""


def diagnose(incident: Incident) -> Diagnosis:
    """Return why memory ran out.

    The reasons are tried in the order in which one makes the others pointless: what is there but in pieces,
    what grows until nothing is left, what is not allowed, what no device would have, what others have.
    """
    told = (
        _beside_the_gpu(incident)
        or _pieces(incident)
        or _growth(incident)
        or _limit(incident)
        or _huge(incident)
        or _other_processes(incident)
    )
    return told or _full(incident)


def _pieces(incident: Incident) -> Diagnosis | None:
    enough = max(incident.asked, FRAGMENTED_FROM * incident.ceiling)
    if incident.on_the_host or incident.origin != "cuda" or not incident.slack >= enough:
        return None
    if incident.largest_free >= incident.asked:
        return None
    largest = incident.largest_free
    pieces = f"pieces of up to {size_text(largest)}" if largest > 0 else "smaller pieces"
    return Diagnosis(
        "fragmentation",
        f"Fragmentation: {size_text(incident.slack)} of PyTorch's reserved memory is free, but only in "
        f"{pieces}; the request needs {size_text(incident.asked)} in one piece.",
    )


def _beside_the_gpu(incident: Incident) -> Diagnosis | None:
    """Return that it was not the GPU that had no room, where CUDA's own error does not say what had none."""
    if incident.origin != "cuda runtime":
        return None
    is_pinning = pinning(incident)
    if not is_pinning and not incident.free >= OFTEN_FREE * incident.total > 0:
        return None
    free = f"{size_text(incident.free)} of {_name(incident)} is free" if incident.free > 0 else ""
    if is_pinning:
        sentence = "Host memory could not be pinned; GPU memory did not run out"
        return Diagnosis("full", f"{sentence}{free and f': {free}'}.")
    return Diagnosis(
        "huge",
        f"Probably one oversized request: CUDA does not report its size, and {free}. Host memory that could "
        "not be pinned is another possible cause.",
        is_sure=False,
    )


def _growth(incident: Incident) -> Diagnosis | None:
    finding = incident.growth
    if finding is None:
        return None
    grown = finding.evidence.get("grown")
    known = float(grown) if isinstance(grown, int | float) else 0.0
    missing = max(incident.asked - incident.free, 0.0)
    if known < GROWN_FROM * incident.ceiling or known < missing:
        return None
    return Diagnosis("leak", f"Leak: {_decapitalized(finding.title)}")


def _limit(incident: Incident) -> Diagnosis | None:
    if incident.on_the_host:
        host = incident.host
        if not incident.met_a_limit:
            return None
        return Diagnosis(
            "limit",
            f"Limit reached: {host.command} allows this process {size_text(host.limit)}; "
            f"{size_text(host.used)} was mapped already, so the request did not fit.",
        )
    if incident.asked > incident.total > 0:
        return None  # without a limit it would not fit either
    is_limited = incident.allowed > 0 or incident.preemptive
    if not is_limited or incident.free < incident.asked:
        return None
    name = _name(incident)
    limits = (
        f"allows this process {size_text(incident.allowed)} of {name}"
        if incident.allowed > 0
        else f"limits this process on {name}"
    )
    free = f"{size_text(incident.free)} is free" if incident.free > 0 else "more is free"
    return Diagnosis(
        "limit",
        f"Limit reached: the memory fraction {limits}, although {free}.",
    )


def _huge(incident: Incident) -> Diagnosis | None:
    asked, there_is = incident.asked, incident.ceiling
    if incident.on_the_host and not asked > 0:
        if incident.free < OFTEN_FREE * there_is or not incident.free > 0:
            return None
        return Diagnosis(
            "huge",
            "Probably one oversized request: the error does not report its size, and "
            f"{size_text(incident.free)} of {size_text(there_is)} was free.",
            is_sure=False,
        )
    held = sum(incident.part(name) for name in HELD)
    beside = there_is - held
    # Beside what others have even a middling request does not fit, nor all predictions beside themselves.
    is_another = gathering(incident) or _other_processes(incident) is not None
    enough = beside if is_another else min(beside, HUGE_FROM * there_is)
    if not (asked > enough and asked >= LARGE_FROM * there_is > 0):
        return None
    if asked > incident.total:
        how = f"more than {_name(incident)} has in total ({size_text(incident.capacity)})"
    elif asked > beside and held > 0:
        how = f"more than the {size_text(beside)} of {_name(incident)} that the model itself does not hold"
    else:
        how = f"{100 * asked / there_is:.0f} % of {_name(incident)}"
    return Diagnosis("huge", f"Oversized request: {size_text(asked)} in one piece, {how}.")


def _other_processes(incident: Incident) -> Diagnosis | None:
    others = incident.others
    if incident.on_the_host or not others >= OTHERS_FROM * incident.total:
        return None
    if incident.asked > incident.free + others:
        return None
    processes = len(incident.processes)
    who = "Another process uses" if processes == 1 else "Other processes use"
    would = " Without that, the request would have fit." if incident.asked > 0 else ""
    return Diagnosis(
        "others",
        f"{who} {size_text(others)} of {_name(incident)}'s {size_text(incident.capacity)}.{would}",
    )


def _full(incident: Incident) -> Diagnosis:
    taken, there_is = incident.allocated, known_of(incident.allowed, incident.capacity)
    if incident.on_the_host:
        return Diagnosis("full", _full_host(incident))
    if not taken >= 0:
        return Diagnosis(
            "unknown",
            f"Cause unknown: the error says that {_name(incident)} ran out of memory, but not how full "
            "it was.",
        )
    sentence = f"Memory is full: PyTorch's tensors take {size_text(taken)}"
    sentence += f" of {size_text(there_is)}" if there_is > 0 else ""
    if biggest := _biggest_part(incident):
        share, label = biggest
        sentence += f", of which {share} is {label}"
    if incident.beside_the_allocator:
        sentence += f"; PyTorch's cache takes {size_text(incident.cache)} more, which the library cannot use"
    return Diagnosis("full", f"{sentence}.")


def _full_host(incident: Incident) -> str:
    free, there_is = incident.free, incident.ceiling
    if not there_is > 0:
        return "The machine had no memory left for the request."
    sentence = f"Memory is full: {size_text(free)} of the machine's {size_text(there_is)} was free"
    if biggest := _biggest_part(incident):
        share, label = biggest
        sentence += f"; {share} of this process's heap ({size_text(incident.allocated)}) is {label}"
    return f"{sentence}."


def _biggest_part(incident: Incident) -> tuple[str, str] | None:
    """Return what most of the allocated bytes are, and how much of them; None where that is not known."""
    sizes = {name: incident.part(name) for name in OF_ALLOCATED if name != "rounding"}
    name = max(sizes, key=sizes.__getitem__)
    if not sizes[name] > 0 or not incident.allocated > 0:
        return None
    share = 100 * sizes[name] / incident.allocated
    return f"{share:.0f} %", LABELS[name]


def _name(incident: Incident) -> str:
    return "this machine" if incident.on_the_host else incident.device.key or "a GPU"


def _decapitalized(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
