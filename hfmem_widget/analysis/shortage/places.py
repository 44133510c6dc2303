"""What was being done when memory ran out, by the names of the functions that ran."""

from __future__ import annotations

from collections.abc import Sequence

from hfmem_widget.analysis.shortage.model import Incident

NEAR = 14
"""How many of the innermost functions tell what asked: the wrappers of a module's call lie between them."""

_LOSS = {
    "cross_entropy", "nll_loss", "log_softmax", "fixed_cross_entropy", "ForCausalLMLoss", "ForMaskedLMLoss",
    "selective_log_softmax",
}  # fmt: skip
_ATTENTION = {"eager_attention_forward", "multi_head_attention_forward"}
_GATHERING = {
    "nested_concat", "nested_detach", "nested_gather", "_pad_across_processes", "pad_across_processes",
}  # fmt: skip
_EVALUATING = {"evaluation_loop", "prediction_loop", "prediction_step", "evaluate", "predict"}
_OPTIMIZERS = (
    "torch.optim.",
    "bitsandbytes.optim.",
    "transformers.optimization.",
    "apex.optimizers.",
)
_PINNING = {"pin_memory", "_pin_memory_loop", "do_one_step"}
_CHECKPOINTING = "torch.utils.checkpoint."


def in_loss(incident: Incident) -> bool:
    """Return whether a loss over the vocabulary was being computed, or its logits were what was asked for."""
    return bool(_LOSS & _names(incident.calls[:NEAR])) or _is_logits(incident)


def in_attention(incident: Incident) -> bool:
    """Return whether attention that keeps its scores was being computed."""
    return bool(_ATTENTION & _names(incident.calls[:NEAR]))


def in_optimizer(incident: Incident) -> bool:
    """Return whether an optimizer was stepping."""
    near = incident.calls[:NEAR]
    is_stepping = any(call.startswith(_OPTIMIZERS) for call in near)
    return is_stepping or incident.within("optimizer") is not None


def evaluating(incident: Incident) -> bool:
    """Return whether it was in an evaluation or a prediction."""
    return incident.within("evaluate", "predict") is not None or bool(
        _EVALUATING & _names(incident.calls)
    )


def gathering(incident: Incident) -> bool:
    """Return whether an evaluation was putting its predictions together."""
    return bool(_GATHERING & _names(incident.calls[:NEAR]))


def pinning(incident: Incident) -> bool:
    """Return whether memory of the machine was being pinned for a GPU."""
    return bool(_PINNING & _names(incident.calls[:NEAR]))


def training(incident: Incident) -> bool:
    """Return whether it was in a training step."""
    if evaluating(incident):
        return False
    if incident.within("train", "step", "substep", "backward", "optimizer") is not None:
        return True
    return incident.part("gradients") > 0 or incident.part("optimizer") > 0


def checkpointed(incident: Incident) -> bool:
    """Return whether activations were being recomputed, or the model says that they are to be."""
    return incident.model.checkpointing or any(
        call.startswith(_CHECKPOINTING) for call in incident.calls
    )


def _is_logits(incident: Incident) -> bool:
    """Return whether the request has the size of logits: tokens by vocabulary, of two or four bytes."""
    tokens, vocabulary = incident.batch_tokens, incident.model.vocabulary
    if not (tokens > 0 and vocabulary):
        return False
    # Requests are rounded up to 2 MiB; the loss looks at one token fewer a sequence.
    sizes = [tokens * vocabulary * width for width in (2, 4)]
    return any(0.97 * size <= incident.asked <= 1.01 * size + 2**21 for size in sizes)


def _names(calls: Sequence[str]) -> set[str]:
    return {call.rpartition(".")[2] for call in calls}
