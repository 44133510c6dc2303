"""What was being done when memory ran out, by the names of the functions that ran."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from hfmem_widget.features.oom.model import Incident
from hfmem_widget.features.oom.observer import BACKWARD

# The innermost functions tell what asked: between them lie the wrappers of a module's call.
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
"""A loss over the vocabulary; attention that keeps its scores; an evaluation that puts its predictions
together; host memory that is pinned for a GPU."""

_EVALUATING = {"evaluation_loop", "prediction_loop", "prediction_step", "evaluate", "predict"}
_OPTIMIZERS = (
    "torch.optim.",
    "bitsandbytes.optim.",
    "transformers.optimization.",
    "apex.optimizers.",
)
_CHECKPOINTING = "torch.utils.checkpoint."


def running(incident: Incident, what: str) -> bool:
    """Return whether one of `_FUNCTIONS` asked; logits that are requested are a loss."""
    near = _within_backward(incident)[:NEAR]
    return _ran(near, _FUNCTIONS[what]) or (what == "loss" and is_logits(incident))


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
    """Return what the code would certainly have needed next: gradients and states, or more of a KV cache."""
    seen, cache = incident.seen, incident.seen.cache
    is_step = in_backward(incident) or in_optimizer(incident) or incident.within("train", "step")
    if cache is not None or not is_step or evaluating(incident):
        return cache.whole - cache.held if cache is not None else 0.0
    return seen.gradients + seen.states


def recomputing(incident: Incident) -> bool:
    """Return whether a backward pass was recomputing the activations of a checkpoint."""
    return in_backward(incident) and any(
        call.startswith(_CHECKPOINTING) for call in _within_backward(incident)
    )


def checkpointed(incident: Incident) -> bool:
    """Return whether activations were being recomputed, or the model says that they are to be."""
    return incident.model.checkpointing or any(
        call.startswith(_CHECKPOINTING) for call in incident.calls
    )


def is_logits(incident: Incident) -> bool:
    """Return whether the request has the size of logits: tokens by vocabulary, of two or four bytes."""
    tokens, vocabulary = incident.batch_tokens, incident.model.vocabulary
    if not (tokens > 0 and vocabulary):
        return False
    # Requests are rounded up to 2 MiB; the loss looks at one token fewer a sequence.
    sizes = [tokens * vocabulary * width for width in (2, 4)]
    return any(0.97 * size <= incident.asked <= 1.01 * size + 2**21 for size in sizes)


def _within_backward(incident: Incident) -> tuple[str, ...]:
    """Return what ran, without what called the backward pass: that did not ask for memory."""
    return tuple(takewhile(BACKWARD.__ne__, incident.calls))


def _ran(calls: Iterable[str], names: set[str]) -> bool:
    return any(call.rpartition(".")[2] in names for call in calls)
