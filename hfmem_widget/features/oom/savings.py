"""What would make less memory do: each rule speaks only where a part, a phase or a request gives a reason.

What is known exactly (a part that goes away) is told as this run's own figure; what a technique does is
told as a share, from where it was measured.
"""

from __future__ import annotations

import sys

from hfmem_widget.features.oom.model import Advice, Incident, Rule
from hfmem_widget.features.oom.places import (
    checkpointed,
    evaluating,
    gathering,
    in_attention,
    in_loss,
    in_optimizer,
    training,
)
from hfmem_widget.features.oom.techniques import TECHNIQUES, Technique
from hfmem_widget.text import format_count, size_text

DOMINATES_FROM = 0.35
"""From which share of the allocated bytes on a part is worth making smaller."""

STATES_FROM = 0.2
WEIGHTS_FROM = 0.45

LONG = 512
"""Tokens of a sequence from which on a shorter one is worth a thought."""

BF16_FROM = (8, 0)
"""The compute capability from which on cards calculate in bfloat16."""

_FOUR_BITS_OF_SIXTEEN = 0.28
"""4.5 bits a weight, with the scales of a block of 64."""


def _fused_attention(incident: Incident) -> Advice | None:
    if not in_attention(incident):
        return None
    return Advice(
        'Load the model with attn_implementation="sdpa"',
        "this attention materialises its score matrix, which grows quadratically with the sequence length"
        + (
            f" ({format_count(incident.count('longest'))} tokens)"
            if incident.count("longest") > 0
            else ""
        ),
        f"this request, {size_text(incident.asked)}, in each layer",
        incident.asked,
    )


def _loss_in_pieces(incident: Incident) -> Advice | None:
    if evaluating(incident) or not in_loss(incident):
        return None
    vocabulary = incident.model.vocabulary
    of = f"{format_count(vocabulary)} values" if vocabulary else "one value per vocabulary entry"
    return Advice(
        "Compute the loss without all logits at once: use_liger_kernel=True, or in chunks of the sequence",
        f"the request is for the logits: {of} for each token",
        f"this request, {size_text(incident.asked)}, and as much again for its gradient",
        incident.asked,
    )


def _keep_predictions_on_the_host(incident: Incident) -> Advice | None:
    if not evaluating(incident) or not (gathering(incident) or incident.grown > incident.asked):
        return None
    grown = max(incident.grown, 0.0)
    action = (
        "Set prediction_loss_only=True, or reduce each prediction (preprocess_logits_for_metrics)"
        if incident.on_the_host  # where eval_accumulation_steps would put them
        else "Set eval_accumulation_steps, or prediction_loss_only=True if no metric needs the predictions"
    )
    return Advice(
        action,
        f"predictions stay {'in memory' if incident.on_the_host else 'on the GPU'} until the evaluation ends"
        + (f": {size_text(grown)} more than at its start" if grown > 0 else ""),
        f"up to {size_text(grown)}" if grown > 0 else "",
        grown,
    )


def _smaller_evaluation(incident: Incident) -> Advice | None:
    if not evaluating(incident) or gathering(incident):
        return None
    return Advice(
        "Use a smaller per_device_eval_batch_size",
        "memory ran out in an evaluation's forward pass; its batch size is independent of the training's",
        bytes=incident.part("activations") / 2,
    )


def _fewer_states(incident: Incident) -> Advice | None:
    states, missing = incident.part("optimizer"), _states_to_come(incident)
    whole = states + missing
    if not _optimizes(incident, whole):
        return None
    adam, adafactor = TECHNIQUES["adam8bit"], TECHNIQUES["adafactor"]
    reason = (
        f"the optimizer was allocating its states: {size_text(whole)} for two per trainable weight"
        if missing
        else f"the optimizer states take {size_text(states)}"
    )
    return Advice(
        'Use optim="adamw_8bit", or optim="adafactor", which has almost no states',
        reason,
        f"about {size_text(adam.saved(whole))} or {size_text(adafactor.saved(whole))} (in our benchmark: "
        f"{_less(adam)} or {_less(adafactor)} of the states, {_slower(adam)} and {_slower(adafactor)})",
        adafactor.saved(whole),
        is_measured=True,
    )


def _adapters(incident: Incident) -> Advice | None:
    contents = incident.contents
    if (
        not training(incident)
        or contents.trainable < contents.parameters
        or not contents.parameters
    ):
        return None
    freed = incident.part("gradients") + incident.part("optimizer") + _states_to_come(incident)
    if not freed >= DOMINATES_FROM * incident.allocated:
        return None
    return Advice(
        "Train adapters (LoRA, with peft) instead of all weights",
        f"all {format_count(contents.parameters)} parameters are trainable; their gradients and "
        f"optimizer states take {size_text(freed)}",
        f"nearly all of that, {size_text(freed)}",
        freed,
    )


def _fused_step(incident: Incident) -> Advice | None:
    if (
        not in_optimizer(incident)
        or _states_to_come(incident)
        or not incident.part("optimizer") > 0
    ):
        return None
    return Advice(
        'Use a fused optimizer: optim="adamw_torch_fused", or AdamW(…, fused=True)',
        "memory ran out in optimizer.step(); unfused, it allocates temporaries as large as the weights",
        f"up to {size_text(incident.part('weights'))}",
        incident.part("weights") / 2,
    )


def _checkpointing(incident: Incident) -> Advice | None:
    activations = incident.part("activations")
    if not _activations_dominate(incident) or checkpointed(incident):
        return None
    technique = TECHNIQUES["checkpointing"]
    return Advice(
        f"Turn on gradient checkpointing ({_checkpointing_option()}=True)",
        f"activations and temporaries take {_share(activations, incident)}",
        _measured(technique, activations),
        technique.saved(activations),
        is_measured=True,
    )


def _smaller_batch(incident: Incident) -> Advice | None:
    samples, activations = incident.batch_samples, incident.part("activations")
    if not _activations_dominate(incident) or not samples >= 2:
        return None
    technique = TECHNIQUES["accumulation"]
    half = format_count(samples // 2)
    return Advice(
        f"Halve the batch size to {half} and double gradient_accumulation_steps",
        f"a batch of {format_count(samples)}{_of_length(incident)} needs {size_text(activations)} of "
        "activations and temporaries, which scale with batch size",
        f"about {size_text(activations / 2)} (in our benchmark, with a quarter of the batch: "
        f"{_less(technique)} of the activations, {_slower(technique)})",
        activations / 2,
        is_measured=True,
    )


def _bfloat16(incident: Incident) -> Advice | None:
    activations = incident.part("activations")
    if (
        not _activations_dominate(incident)
        or not _is_float32(incident)
        or incident.autocast is not False
    ):
        return None
    technique = TECHNIQUES["bf16"]
    return Advice(
        "Train with bf16=True",
        "the weights are float32 without autocast, and this GPU supports bfloat16",
        _measured(technique, activations),
        technique.saved(activations),
        is_measured=True,
    )


def _shorter(incident: Incident) -> Advice | None:
    longest, samples = incident.count("longest"), incident.batch_samples
    if not _activations_dominate(incident) or samples >= 2 or not longest >= LONG:
        return None
    activations = incident.part("activations")
    return Advice(
        "Use shorter sequences (max_length, or truncation)",
        f"the batch is a single sequence of {format_count(longest)} tokens and cannot be smaller",
        f"about {size_text(activations / 2)} at half the length",
        activations / 2,
    )


def _half_weights(incident: Incident) -> Advice | None:
    weights = incident.part("weights")
    if not weights >= WEIGHTS_FROM * incident.ceiling or not _is_float32(incident):
        return None
    return Advice(
        "Load the model with dtype=torch.bfloat16",
        f"the weights are float32 and take {_share(weights, incident)}",
        f"half of them, {size_text(weights / 2)}",
        weights / 2,
    )


def _four_bits(incident: Incident) -> Advice | None:
    weights = incident.part("weights")
    has_sixteen = _most_of_weights(incident) in {"", "bfloat16", "float16"}
    if not weights >= WEIGHTS_FROM * incident.ceiling or not has_sixteen:
        return None
    if incident.model.quantized or incident.on_the_host:
        return None
    saved = (1 - _FOUR_BITS_OF_SIXTEEN) * weights
    return Advice(
        "Load the weights in 4 bit (BitsAndBytesConfig(load_in_4bit=True)) and train adapters",
        f"the weights take {_share(weights, incident)}",
        f"about {size_text(saved)}: 4.5 bits per weight instead of 16",
        saved,
    )


def _optimizes(incident: Incident, whole: float) -> bool:
    is_there = training(incident) or in_optimizer(incident)
    return is_there and whole >= STATES_FROM * max(incident.allocated, whole)


def _states_to_come(incident: Incident) -> float:
    """Return the bytes of AdamW's states that were not there yet, where they were being made."""
    states = incident.part("optimizer")
    contents = incident.contents
    share = contents.trainable / contents.parameters if contents.parameters else 1.0
    both = 2 * share * incident.part("weights")
    return both - states if in_optimizer(incident) and states < 0.9 * both else 0.0


def _activations_dominate(incident: Incident) -> bool:
    activations = incident.part("activations")
    return training(incident) and activations >= DOMINATES_FROM * incident.allocated > 0


def _checkpointing_option() -> str:
    """Return what the transformers that is loaded calls it among a Trainer's arguments."""
    module = sys.modules.get("transformers.training_args")
    fields = getattr(getattr(module, "TrainingArguments", None), "__dataclass_fields__", {})
    newer = "activation_checkpointing"
    return newer if newer in fields else "gradient_checkpointing"


def _is_float32(incident: Incident) -> bool:
    """Return whether most of the weights are float32 on a GPU that supports bfloat16."""
    return _most_of_weights(incident) == "float32" and incident.capability >= BF16_FROM


def _most_of_weights(incident: Incident) -> str:
    """Return what most of the weights are; empty if unknown."""
    dtypes = incident.contents.dtypes
    return max(dtypes, key=lambda one: dtypes[one], default="")


def _of_length(incident: Incident) -> str:
    longest = incident.count("longest")
    return f" sequences of {format_count(longest)} tokens" if longest > 0 else ""


def _share(size: float, incident: Incident) -> str:
    if not incident.allocated > 0:
        return size_text(size)
    return f"{size_text(size)}, {100 * size / incident.allocated:.0f} % of allocated memory"


def _measured(technique: Technique, size: float) -> str:
    return (
        f"about {size_text(technique.saved(size))} (in our benchmark: "
        f"{_less(technique)} of the {technique.part}, {100 * (1 - technique.peak):.0f} % of the peak, "
        f"{_slower(technique)})"
    )


def _less(technique: Technique) -> str:
    return f"{100 * (1 - technique.left):.0f} %"


def _slower(technique: Technique) -> str:
    if technique.speed > 1:
        return f"{technique.speed:.1f} times as fast"
    return f"{100 * (1 - technique.speed):.0f} % slower"


SAVINGS: tuple[Rule, ...] = (
    _fused_attention, _loss_in_pieces, _keep_predictions_on_the_host, _smaller_evaluation, _fewer_states,
    _adapters, _fused_step, _checkpointing, _smaller_batch, _bfloat16, _shorter, _half_weights, _four_bits,
)  # fmt: skip
"""What may save memory."""
