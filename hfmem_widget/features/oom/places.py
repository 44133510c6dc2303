"""What was being done when memory ran out, by the names of the functions that ran."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from hfmem_widget.features.oom.model import BACKWARD, Incident

NEAR = 14
"""The innermost functions that tell what asked: the wrappers of a module's call lie between them."""

_LOSS = {
    "cross_entropy", "nll_loss", "log_softmax", "fixed_cross_entropy", "ForCausalLMLoss", "ForMaskedLMLoss",
    "selective_log_softmax",
}  # fmt: skip
_ATTENTION = {"eager_attention_forward", "multi_head_attention_forward"}
_GATHERING = {
    "nested_concat", "nested_detach", "nested_gather", "_pad_across_processes", "pad_across_processes",
}  # fmt: skip
_EVALUATING = {"evaluation_loop", "prediction_loop", "prediction_step", "evaluate", "predict"}
_PINNING = {"pin_memory", "_pin_memory_loop", "do_one_step"}
_OPTIMIZERS = (
    "torch.optim.",
    "bitsandbytes.optim.",
    "transformers.optimization.",
    "apex.optimizers.",
)
_CHECKPOINTING = "torch.utils.checkpoint."


def in_loss(incident: Incident) -> bool:
    """Return whether a loss over the vocabulary was being computed, or its logits were requested."""
    return _ran_near(incident, _LOSS) or is_logits(incident)


def in_attention(incident: Incident) -> bool:
    """Return whether attention was running that keeps its scores."""
    return _ran_near(incident, _ATTENTION)


def gathering(incident: Incident) -> bool:
    """Return whether an evaluation was putting its predictions together."""
    return _ran_near(incident, _GATHERING)


def pinning(incident: Incident) -> bool:
    """Return whether host memory was being pinned for a GPU."""
    return _ran_near(incident, _PINNING)


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


def _ran_near(incident: Incident, names: set[str]) -> bool:
    return _ran(_within_backward(incident)[:NEAR], names)


def _ran(calls: Iterable[str], names: set[str]) -> bool:
    return any(call.rpartition(".")[2] in names for call in calls)
