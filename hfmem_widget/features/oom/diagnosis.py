"""Why memory ran out, in plain words: the decisive one of the causes that an incident shows.

The names of the running functions tell what the code was doing.
"""

from collections.abc import Iterable
from itertools import takewhile

from hfmem_widget.analysis.parts import LABELS, OF_ALLOCATED, known_of
from hfmem_widget.features.oom.model import Incident, OomDiagnosis
from hfmem_widget.features.oom.observer import BACKWARD
from hfmem_widget.session import HELD
from hfmem_widget.text import format_bytes, format_count, format_counted

# The least shares of the memory that this process could use:
GROWN_FROM = 0.15  # growth that can be the cause
FRAGMENTED_FROM = 0.1  # free pieces that can be the cause; there are always a few
HUGE_FROM = 1 / 3  # a request that is the cause whatever else is allocated
LARGE_FROM = 0.1  # a request that can be the cause at all
MADE_OF_ACTIVATIONS = 0.35  # activations, of the allocated bytes, that make the batch the cause
LONG_FROM = 2.0  # the longest sequence, as a multiple of the longest in other steps
OTHERS_FROM = 0.1  # other processes' use that is named
OFTEN_FREE = 0.2  # free memory with which only a huge request fails, even one of unknown size

# The number of innermost functions that show what requested memory, with the wrappers of modules' calls.
NEAR = 14

_FUNCTIONS = {
    "loss": {
        "cross_entropy", "nll_loss", "log_softmax", "fixed_cross_entropy", "ForCausalLMLoss",
        "ForMaskedLMLoss", "selective_log_softmax",
    },
    "attention": {"eager_attention_forward", "multi_head_attention_forward"},
    "gathering": {
        "nested_concat", "nested_detach", "nested_gather", "_pad_across_processes", "pad_across_processes",
    },
    "pinning": {"pin_memory", "_pin_memory_loop", "do_one_step"},
}  # fmt: skip
"""The functions of a loss over the vocabulary, of attention that keeps its scores, of an evaluation that
concatenates its predictions, and of pinning host memory for a GPU."""

_EVALUATING = {"evaluation_loop", "prediction_loop", "prediction_step", "evaluate", "predict"}
_OPTIMIZERS = (
    "torch.optim.",
    "bitsandbytes.optim.",
    "transformers.optimization.",
    "apex.optimizers.",
)
_CHECKPOINTING = "torch.utils.checkpoint."


def diagnose(incident: Incident) -> OomDiagnosis:
    """Return why memory ran out.

    A cause comes before those that are pointless to remove while it lasts: first what the code has to change,
    then the allocator's difficulties, since later requests must fit, too.
    """
    return (
        _beside_the_gpu(incident)
        or (huge(incident) if incident.is_beyond else None)
        or _another_model(incident)
        or _growth(incident)
        or _graphs(incident)
        or _kv_cache(incident)
        or _training(incident)
        or _long_rows(incident)
        or _fragmentation(incident)
        or limit(incident)
        or _page_cache(incident)
        or huge(incident)
        or _other_processes(incident)
        or _full(incident)
    )


def _beside_the_gpu(incident: Incident) -> OomDiagnosis | None:
    """Return the cause of an error of CUDA itself, which gives no figures, if the GPU was not full."""
    if incident.origin != "cuda runtime":
        return None
    free = f"{format_bytes(incident.free)} of {incident.place} is free" if incident.free > 0 else ""
    if running(incident, "pinning"):
        sentence = "Host memory could not be pinned; GPU memory did not run out"
        return OomDiagnosis("full", f"{sentence}{free and f': {free}'}.")
    if not incident.free >= OFTEN_FREE * incident.total > 0:
        return None
    return OomDiagnosis(
        "huge",
        f"Probably one oversized request: CUDA does not report its size, and {free}. Host memory that could "
        "not be pinned is another possible cause.",
        is_sure=False,
    )


def _another_model(incident: Incident) -> OomDiagnosis | None:
    other = incident.seen.other
    if other is None or other.bytes < GROWN_FROM * incident.ceiling:
        return None
    verb = "is" if other.what.startswith("Another") else "are"
    sentence = f"{other.what} {verb} alive: {other.at} ({format_bytes(other.bytes)})."
    return OomDiagnosis("another model", sentence)


def _graphs(incident: Incident) -> OomDiagnosis | None:
    kept = incident.seen.kept
    if kept is None or kept.bytes < GROWN_FROM * incident.ceiling:
        return None
    held = f"{kept.path} holds {with_share(kept.bytes, incident)}"
    graphs = format_counted(kept.graphs, "tensor")
    return OomDiagnosis("graphs", f"Graphs kept: {held}: the graphs of {graphs}.")


def _kv_cache(incident: Incident) -> OomDiagnosis | None:
    cache = incident.seen.cache
    if cache is None or not incident.room_for_cache < cache.whole:
        return None
    return OomDiagnosis(
        "kv cache",
        f"KV cache: {format_counted(cache.rows, 'sequence')} of {format_count(cache.length)} tokens need "
        f"{format_bytes(cache.whole)}; beside the rest there is room for "
        f"{format_bytes(incident.room_for_cache)}.",
    )


def _training(incident: Incident) -> OomDiagnosis | None:
    seen, held = incident.seen, sum(incident.part(name) for name in HELD)
    # It would not fit even with nothing else allocated, so a smaller batch does not help.
    if seen.cache or not to_come(incident) > max(0.0, incident.allocated + incident.room - held):
        return None
    parts = [f"{format_bytes(seen.gradients)} of gradients"] if seen.gradients else []
    if seen.states:
        parts.append(
            f"{format_bytes(seen.states)} of optimizer states ({', '.join(seen.optimizers)})"
        )
    return OomDiagnosis(
        "training",
        f"Training does not fit, whatever the batch: {' and '.join(parts)} are still to come, beside "
        f"{format_bytes(held)} of weights, gradients and states that are there.",
    )


def _long_rows(incident: Incident) -> OomDiagnosis | None:
    longest = incident.count("longest")
    if not incident.usual or not longest >= LONG_FROM * incident.usual[1]:
        return None
    if not incident.part("activations") >= MADE_OF_ACTIVATIONS * incident.allocated:
        return None
    usual = " to ".join(dict.fromkeys(map(format_count, incident.usual)))
    rows = f"{format_count(incident.batch_samples)} \u00d7 " if incident.batch_samples > 0 else ""
    return OomDiagnosis(
        "long rows",
        f"One long batch: {rows}{format_count(longest)} tokens; the other steps had {usual}.",
    )


def _fragmentation(incident: Incident) -> OomDiagnosis | None:
    asked, largest = incident.asked, incident.largest_free
    enough = max(asked, FRAGMENTED_FROM * incident.ceiling)
    if incident.on_the_host or incident.origin != "cuda" or not incident.slack >= enough:
        return None
    # The requests that follow must fit, too.
    if largest >= asked or asked + to_come(incident) > incident.room:
        return None
    pieces = f"pieces of up to {format_bytes(largest)}" if largest > 0 else "smaller pieces"
    return OomDiagnosis(
        "fragmentation",
        f"Fragmentation: {format_bytes(incident.slack)} of PyTorch's reserved memory is free, but only in "
        f"{pieces}; the request needs {format_bytes(asked)} in one piece.",
    )


def _growth(incident: Incident) -> OomDiagnosis | None:
    finding, grown = incident.growth, incident.known_growth
    missing = max(incident.asked - min(incident.free, incident.room), 0.0)
    if finding is None or grown < GROWN_FROM * incident.ceiling or grown < missing:
        return None
    return OomDiagnosis("leak", f"Leak: {finding.title[:1].lower()}{finding.title[1:]}")


def limit(incident: Incident) -> OomDiagnosis | None:
    """Return the limit on this process as the cause, if the request would fit without it."""
    if incident.on_the_host:
        if not incident.met_a_limit:
            return None
        limits = f"{incident.host.command} allows this process {format_bytes(incident.host.limit)}"
        mapped = f"{format_bytes(incident.host.used)} was mapped"
        if not incident.asked > 0:
            return OomDiagnosis("limit", f"Probably the limit: {limits}; {mapped}.", is_sure=False)
        mapped = (
            f"; {mapped} already, so the request did not fit"
            if incident.is_over_limit
            else f", too little for the request; {mapped} after the error"
        )
        return OomDiagnosis("limit", f"Limit reached: {limits}{mapped}.")
    is_limited = incident.allowed > 0 or incident.preemptive
    # A request larger than the device would not fit without the limit either.
    if incident.is_beyond or not is_limited or incident.free < incident.asked:
        return None
    limits = (
        f"allows this process {format_bytes(incident.allowed)} of"
        if incident.allowed > 0
        else "limits this process on"
    )
    free = f"{format_bytes(incident.free)} is free" if incident.free > 0 else "more is free"
    return OomDiagnosis(
        "limit", f"Limit reached: the memory fraction {limits} {incident.place}, although {free}."
    )


def _page_cache(incident: Incident) -> OomDiagnosis | None:
    """Return page cache as the cause: CUDA counts it as used where CPU and GPU share memory."""
    cache, free = incident.part("page_cache"), incident.free
    if not (cache > 0 and free >= incident.asked > free - cache):
        return None
    return OomDiagnosis(
        "page cache",
        f"Probably page cache: of the {format_bytes(free)} that the kernel could give, {format_bytes(cache)} "
        f"was cache of files, which CUDA counts as used; {format_bytes(incident.asked)} was requested.",
        is_sure=False,
    )


def huge(incident: Incident) -> OomDiagnosis | None:
    """Return the size of the request as the cause; None if another cause is as likely."""
    asked, ceiling = incident.asked, incident.ceiling
    if incident.on_the_host and not asked > 0:
        if incident.free < OFTEN_FREE * ceiling or not incident.free > 0:
            return None
        return OomDiagnosis(
            "huge",
            "Probably one oversized request: the error does not report its size, and "
            f"{format_bytes(incident.free)} of {format_bytes(ceiling)} was free.",
            is_sure=False,
        )
    held = sum(incident.part(name) for name in HELD)
    beyond_held = ceiling - held
    # With other processes on the device, or copies of all predictions, a middling request can fail as well.
    is_another = running(incident, "gathering") or _other_processes(incident) is not None
    enough = beyond_held if is_another else min(beyond_held, HUGE_FROM * ceiling)
    if not (asked > enough and asked >= LARGE_FROM * ceiling > 0):
        return None
    if asked > incident.total:
        relation = f"more than {incident.place} has in total ({format_bytes(incident.capacity)})"
    elif asked > beyond_held and held > 0:
        rest = f"{format_bytes(beyond_held)} of {incident.place}"
        relation = f"more than the {rest} that the model itself does not hold"
    else:
        relation = f"{100 * asked / ceiling:.0f} % of {incident.place}"
    return OomDiagnosis(
        "huge", f"Oversized request: {format_bytes(asked)} in one piece, {relation}."
    )


def _other_processes(incident: Incident) -> OomDiagnosis | None:
    others = incident.others
    if incident.on_the_host or not others >= OTHERS_FROM * incident.total:
        return None
    if incident.asked > incident.free + others:
        return None
    subject = "Another process uses" if len(incident.processes) == 1 else "Other processes use"
    consequence = " Without that, the request would have fit." if incident.asked > 0 else ""
    if incident.device.shared and not incident.processes:
        all_of_it = f"{format_bytes(others)} of the {format_bytes(incident.capacity)}"
        sentence = f"The rest of the machine uses {all_of_it} that CPU and GPU share.{consequence}"
        return OomDiagnosis("machine", sentence)
    used = f"{format_bytes(others)} of {incident.place}'s {format_bytes(incident.capacity)}"
    return OomDiagnosis("others", f"{subject} {used}.{consequence}")


def _full(incident: Incident) -> OomDiagnosis:
    if incident.on_the_host:
        return OomDiagnosis("full", _full_host(incident))
    allocated, available = incident.allocated, known_of(incident.allowed, incident.capacity)
    if not allocated >= 0:
        return OomDiagnosis(
            "unknown",
            f"Cause unknown: the error says that {incident.place} ran out of memory, but not how full "
            "it was.",
        )
    sentence = f"Memory is full: PyTorch's tensors take {format_bytes(allocated)}"
    sentence += f" of {format_bytes(available)}" if available > 0 else ""
    if biggest := _biggest_part(incident):
        share, label = biggest
        sentence += f", of which {share} is {label}"
    if incident.beside_the_allocator:
        more = f"{format_bytes(incident.cache)} more"
        sentence += f"; PyTorch's cache takes {more}, which the library cannot use"
    return OomDiagnosis("full", f"{sentence}.")


def _full_host(incident: Incident) -> str:
    if not incident.ceiling > 0:
        return "The machine had no memory left for the request."
    whole = f"the machine's {format_bytes(incident.ceiling)}"
    sentence = f"Memory is full: {format_bytes(incident.free)} of {whole} was free"
    if biggest := _biggest_part(incident):
        share, label = biggest
        private = format_bytes(incident.allocated)
        sentence += f"; {share} of this process's private memory ({private}) is {label}"
    return f"{sentence}."


def _biggest_part(incident: Incident) -> tuple[str, str] | None:
    """Return the share of the largest part of the allocated bytes, and its label; None if unknown."""
    sizes = {name: incident.part(name) for name in OF_ALLOCATED if name != "rounding"}
    name = max(sizes, key=sizes.__getitem__)
    if not sizes[name] > 0 or not incident.allocated > 0:
        return None
    return f"{100 * sizes[name] / incident.allocated:.0f} %", LABELS[name]


def with_share(size: float, incident: Incident) -> str:
    """Return a size, and its share of the allocated bytes if they are known."""
    if not incident.allocated > 0:
        return format_bytes(size)
    return f"{format_bytes(size)}, {100 * size / incident.allocated:.0f} % of allocated memory"


def running(incident: Incident, kind: str) -> bool:
    """Return whether a function of `_FUNCTIONS` made the request; a request for logits is a loss."""
    near = _within_backward(incident)[:NEAR]
    return _ran(near, _FUNCTIONS[kind]) or (kind == "loss" and is_logits(incident))


def in_optimizer(incident: Incident) -> bool:
    """Return whether an optimizer was stepping."""
    is_stepping = any(call.startswith(_OPTIMIZERS) for call in _within_backward(incident)[:NEAR])
    return is_stepping or incident.within("optimizer") is not None


def evaluating(incident: Incident) -> bool:
    """Return whether an evaluation or a prediction was running."""
    is_within = incident.within("evaluate", "predict") is not None
    return is_within or _ran(incident.calls, _EVALUATING)


def training(incident: Incident) -> bool:
    """Return whether a training step was running."""
    if evaluating(incident):
        return False
    if in_backward(incident) or incident.within("train", "step", "substep", "optimizer"):
        return True
    return incident.part("gradients") > 0 or incident.part("optimizer") > 0


def in_backward(incident: Incident) -> bool:
    """Return whether a backward pass was running."""
    return incident.within("backward") is not None or BACKWARD in incident.calls


def to_come(incident: Incident) -> float:
    """Return the bytes that the code would need next for certain: gradients and states, or a KV cache."""
    seen, cache = incident.seen, incident.seen.cache
    if cache is not None:
        return cache.whole - cache.held
    is_step = in_backward(incident) or in_optimizer(incident) or incident.within("train", "step")
    return seen.gradients + seen.states if is_step and not evaluating(incident) else 0.0


def recomputing(incident: Incident) -> bool:
    """Return whether a backward pass was recomputing the activations of a checkpoint."""
    calls = _within_backward(incident) if in_backward(incident) else ()
    return any(call.startswith(_CHECKPOINTING) for call in calls)


def checkpointed(incident: Incident) -> bool:
    """Return whether activations were being recomputed, or will be according to the model's own fields."""
    is_recomputing = any(call.startswith(_CHECKPOINTING) for call in incident.calls)
    return incident.model.checkpointing or is_recomputing


def is_logits(incident: Incident) -> bool:
    """Return whether the request has the size of logits: tokens by vocabulary, of two or four bytes."""
    tokens, vocabulary = incident.batch_tokens, incident.model.vocabulary
    if not (tokens > 0 and vocabulary):
        return False
    # Requests are rounded up to 2 MiB; the loss drops one token of each sequence.
    sizes = [tokens * vocabulary * width for width in (2, 4)]
    return any(0.97 * size <= incident.asked <= 1.01 * size + 2**21 for size in sizes)


def _within_backward(incident: Incident) -> tuple[str, ...]:
    """Return the running functions without the callers of the backward pass, which requested no memory."""
    return tuple(takewhile(BACKWARD.__ne__, incident.calls))


def _ran(calls: Iterable[str], names: set[str]) -> bool:
    return any(call.rpartition(".")[2] in names for call in calls)
