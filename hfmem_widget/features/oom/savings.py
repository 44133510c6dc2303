"""What would make less memory do: advice is given only if a part, a phase or the request calls for it.

If a part would go away, the saving is this run's own figure. What a technique saves is a share, from our
benchmark.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hfmem_widget.features.oom.model import Advice, Incident
from hfmem_widget.features.oom.places import (
    checkpointed,
    evaluating,
    in_optimizer,
    running,
    training,
)
from hfmem_widget.text import format_count, size_text

# The least shares of the allocated bytes, or of the device, at which a part is worth making smaller:
DOMINATES_FROM = 0.35
STATES_FROM = 0.2
WEIGHTS_FROM = 0.45

LONG = 512  # tokens of a sequence from which on a shorter one is worth a thought
BF16_FROM = (8, 0)  # the least compute capability that supports bfloat16
MEASURED_ON = "bert-large, 4 \u00d7 512 tokens, float32, AdamW, on an H200"
_FOUR_BITS_OF_SIXTEEN = 0.28  # 4.5 bits a weight, with the scales of a block of 64


@dataclass(frozen=True, slots=True)
class Technique:
    """One change to a training: ratios to the same training without it, from ``docs/measured/anatomy.md``."""

    row: str  # of the table
    part: str  # that it makes smaller
    left: float  # what is left of that part
    peak: float  # what is left of the whole peak
    speed: float  # samples a second

    def saved(self, size: float) -> float:
        """Return what it would save of a part of so many bytes."""
        return (1 - self.left) * size

    @property
    def less(self) -> str:
        """What it saves of its part."""
        return f"{100 * (1 - self.left):.0f} %"

    @property
    def slower(self) -> str:
        """How much slower it is, or how much faster."""
        if self.speed > 1:
            return f"{self.speed:.1f} times as fast"
        return f"{100 * (1 - self.speed):.0f} % slower"

    def advice(self, action: str, reason: str, size: float) -> Advice:
        """Return the advice to use it on a part of so many bytes."""
        saving = (
            f"about {size_text(self.saved(size))} (in our benchmark: {self.less} of the {self.part}, "
            f"{100 * (1 - self.peak):.0f} % of the peak, {self.slower})"
        )
        return Advice(action, reason, saving, self.saved(size), is_measured=True)


TECHNIQUES: Mapping[str, Technique] = MappingProxyType(
    {
        "checkpointing": Technique("checkpointing", "activations", 1313 / 3256, 5217 / 7159, 25.9 / 35.1),
        "accumulation": Technique(
            "accumulation, 4 batches of 1", "activations", 821 / 3256, 6003 / 7159, 21.2 / 35.1
        ),
        "bf16": Technique("bf16", "activations", 2676 / 3256, 6580 / 7159, 54.3 / 35.1),
        "adafactor": Technique("Adafactor", "optimizer", 3 / 2557, 4604 / 7159, 20.6 / 35.1),
        "adam8bit": Technique("8-bit Adam", "optimizer", 831 / 2557, 5434 / 7159, 27.8 / 35.1),
    }
)  # fmt: skip


def savings(incident: Incident) -> Iterator[Advice]:
    """Yield what may save memory."""
    yield from _of_the_request(incident)
    if evaluating(incident):
        yield from _of_evaluation(incident)
    yield from of_states(incident)
    if training(incident):
        yield from _of_activations(incident)
    yield from _of_weights(incident)


def _of_the_request(incident: Incident) -> Iterator[Advice]:
    asked, longest = size_text(incident.asked), incident.count("longest")
    if running(incident, "attention"):
        tokens = f" ({format_count(longest)} tokens)" if longest > 0 else ""
        yield Advice(
            'Load the model with attn_implementation="sdpa"',
            "this attention materialises its score matrix, which grows quadratically with the sequence "
            f"length{tokens}",
            f"this request, {asked}, in each layer",
            incident.asked,
        )
    if running(incident, "loss") and not evaluating(incident):
        vocabulary = incident.model.vocabulary
        of = (
            f"{format_count(vocabulary)} values" if vocabulary else "one value per vocabulary entry"
        )
        yield Advice(
            "Compute the loss without all logits at once: use_liger_kernel=True, or in chunks of the "
            "sequence",
            f"the request is for the logits: {of} for each token",
            f"this request, {asked}, and as much again for its gradient",
            incident.asked,
        )


def _of_evaluation(incident: Incident) -> Iterator[Advice]:
    is_gathering = running(incident, "gathering")
    if is_gathering or incident.grown > incident.asked:
        grown = max(incident.grown, 0.0)
        action = (
            "Set eval_accumulation_steps, or prediction_loss_only=True if no metric needs the "
            "predictions"
        )
        place = "on the GPU"
        if incident.on_the_host:  # where eval_accumulation_steps would move nothing
            action = (
                "Set prediction_loss_only=True, or reduce each prediction "
                "(preprocess_logits_for_metrics)"
            )
            place = "in memory"
        yield Advice(
            action,
            f"predictions stay {place} until the evaluation ends"
            + (f": {size_text(grown)} more than at its start" if grown > 0 else ""),
            f"up to {size_text(grown)}" if grown > 0 else "",
            grown,
        )
    if not is_gathering:
        yield Advice(
            "Use a smaller per_device_eval_batch_size",
            "memory ran out in an evaluation's forward pass; its batch size is independent of the training's",
            bytes=incident.part("activations") / 2,
        )


def of_states(incident: Incident) -> Iterator[Advice]:
    """Yield what makes gradients and optimizer states smaller."""
    contents, states = incident.contents, incident.part("optimizer")
    missing = incident.seen.states
    whole = states + missing
    is_there = training(incident) or in_optimizer(incident)
    if (
        is_there
        and _may_be_adam(incident)
        and whole >= STATES_FROM * max(incident.allocated, whole)
    ):
        adam, adafactor = TECHNIQUES["adam8bit"], TECHNIQUES["adafactor"]
        yield Advice(
            'Use optim="adamw_8bit", or optim="adafactor", which has almost no states',
            f"the optimizer's states will take {size_text(whole)}"
            if missing
            else f"the optimizer states take {size_text(states)}",
            f"about {size_text(adam.saved(whole))} or {size_text(adafactor.saved(whole))} (in our "
            f"benchmark: {adam.less} or {adafactor.less} of the states, {adam.slower} and "
            f"{adafactor.slower})",
            adafactor.saved(whole),
            is_measured=True,
        )
    freed = incident.part("gradients") + incident.seen.gradients + whole
    is_all = 0 < contents.parameters <= contents.trainable
    if training(incident) and is_all and freed >= DOMINATES_FROM * incident.allocated:
        yield Advice(
            "Train adapters (LoRA, with peft) instead of all weights",
            f"all {format_count(contents.parameters)} parameters are trainable; their gradients and "
            f"optimizer states take {size_text(freed)}",
            f"nearly all of that, {size_text(freed)}",
            freed,
        )
    if in_optimizer(incident) and _may_be_adam(incident) and states > 0 and not missing:
        yield Advice(
            'Use a fused optimizer: optim="adamw_torch_fused", or AdamW(…, fused=True)',
            "memory ran out in optimizer.step(); unfused, it allocates temporaries as large as the weights",
            f"up to {size_text(incident.part('weights'))}",
            incident.part("weights") / 2,
        )


def _may_be_adam(incident: Incident) -> bool:
    """Return whether an optimizer keeps two states as large as the weights; by its name, if that is known."""
    names = [name.lower() for name in incident.contents.optimizers]
    return not names or any("adam" in name and "8bit" not in name for name in names)


def _of_activations(incident: Incident) -> Iterator[Advice]:
    activations = incident.part("activations")
    if not activations >= DOMINATES_FROM * incident.allocated > 0:
        return
    samples, longest = incident.batch_samples, incident.count("longest")
    if not checkpointed(incident):
        yield TECHNIQUES["checkpointing"].advice(
            f"Turn on gradient checkpointing ({_checkpointing_option()}=True)",
            f"activations and temporaries take {_share(activations, incident)}",
            activations,
        )
    if samples >= 2:
        technique = TECHNIQUES["accumulation"]
        of_length = f" sequences of {format_count(longest)} tokens" if longest > 0 else ""
        yield Advice(
            f"Halve the batch size to {format_count(samples // 2)} and double gradient_accumulation_steps",
            f"a batch of {format_count(samples)}{of_length} needs {size_text(activations)} of activations "
            "and temporaries, which scale with batch size",
            f"about {size_text(activations / 2)} (in our benchmark, with a quarter of the batch: "
            f"{technique.less} of the activations, {technique.slower})",
            activations / 2,
            is_measured=True,
        )
    if _could_be_bfloat16(incident) and incident.autocast is False:
        yield TECHNIQUES["bf16"].advice(
            "Train with bf16=True",
            "the weights are float32 without autocast, and this GPU supports bfloat16",
            activations,
        )
    if not samples >= 2 and longest >= LONG:
        yield Advice(
            "Use shorter sequences (max_length, or truncation)",
            f"the batch is a single sequence of {format_count(longest)} tokens and cannot be smaller",
            f"about {size_text(activations / 2)} at half the length",
            activations / 2,
        )


def _of_weights(incident: Incident) -> Iterator[Advice]:
    weights = incident.part("weights")
    if not weights >= WEIGHTS_FROM * incident.ceiling:
        return
    if _could_be_bfloat16(incident):
        yield Advice(
            "Load the model with dtype=torch.bfloat16",
            f"the weights are float32 and take {_share(weights, incident)}",
            f"half of them, {size_text(weights / 2)}",
            weights / 2,
        )
    is_16_bit = _usual_dtype(incident) in {"", "bfloat16", "float16"}
    if is_16_bit and not incident.model.quantized and not incident.on_the_host:
        saved = (1 - _FOUR_BITS_OF_SIXTEEN) * weights
        yield Advice(
            "Load the weights in 4 bit (BitsAndBytesConfig(load_in_4bit=True)) and train adapters",
            f"the weights take {_share(weights, incident)}",
            f"about {size_text(saved)}: 4.5 bits per weight instead of 16",
            saved,
        )


def _could_be_bfloat16(incident: Incident) -> bool:
    return _usual_dtype(incident) == "float32" and incident.capability >= BF16_FROM


def _usual_dtype(incident: Incident) -> str:
    """Return the dtype of most of the weights; empty if unknown."""
    dtypes = incident.contents.dtypes
    return max(dtypes, key=lambda dtype: dtypes[dtype], default="")


def _checkpointing_option() -> str:
    """Return what the loaded transformers calls it among a Trainer's arguments."""
    module = sys.modules.get("transformers.training_args")
    fields = getattr(getattr(module, "TrainingArguments", None), "__dataclass_fields__", {})
    newer = "activation_checkpointing"
    return newer if newer in fields else "gradient_checkpointing"


def _share(size: float, incident: Incident) -> str:
    if not incident.allocated > 0:
        return size_text(size)
    return f"{size_text(size)}, {100 * size / incident.allocated:.0f} % of allocated memory"
