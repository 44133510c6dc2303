"""Advice after an out-of-memory error, best first. Each has its reason in the incident.

The reason is a part of memory, a phase or the request. The saving of a part that would go away is this run's
own figure. If dry runs of the model (`features.fit`) were made, the changes that they try are left out.
"""

import math
from collections.abc import Iterator

from hfmem_widget.features.oom.diagnosis import (
    checkpointed,
    evaluating,
    in_optimizer,
    limit,
    running,
    to_come,
    training,
    with_share,
)
from hfmem_widget.features.oom.model import Advice, Cache, Cause, Incident, OomDiagnosis
from hfmem_widget.session import VERDICTS, Move
from hfmem_widget.text import (
    GIB,
    MIB,
    checkpointing_option,
    format_bytes,
    format_count,
    torch_module,
)

MOST = 5
VARIES_FROM = 1.5  # longest sequence divided by shortest; then steps request different sizes
KEPT_FROM = 256 * MIB
BEFORE_A_LIMIT = frozenset({"another model", "graphs", "leak", "kv cache", "training", "long rows"})
ENOUGH = (BEFORE_A_LIMIT | {"fragmentation"}) - {"long rows"}

# The least shares of the allocated bytes, or of the device, at which a part is worth making smaller:
DOMINATES_FROM = 0.35
STATES_FROM = 0.2
WEIGHTS_FROM = 0.45

LONG = 512  # tokens of a sequence from which on a shorter one is advised
BF16_FROM = (8, 0)  # the least compute capability that supports bfloat16
_FOUR_BITS_OF_SIXTEEN = 0.28  # 4.5 bits a weight, with the scales of a block of 64


def advise(incident: Incident, diagnosis: OomDiagnosis) -> tuple[Advice, ...]:
    """Return the remedies of the diagnosed cause, then the changes that save most."""
    first = list(remedies(incident, diagnosis.cause))
    # For these causes the remedy is enough, and nothing else has to be smaller.
    is_enough = first and diagnosis.cause in ENOUGH
    more = [] if is_enough else sorted(savings(incident), key=lambda advice: -advice.bytes)
    last = list(_left_behind(incident))
    if diagnosis.cause in BEFORE_A_LIMIT and limit(incident) is not None:
        last.insert(0, _raise_limit(incident))
    return (*[*first, *more][: MOST - len(last)], *last)


def advice_of(move: Move) -> Advice:
    """Return the advice to make a change that a dry run has tried."""
    peak = f"{move.need}, which {VERDICTS[move.fits]}"
    reason = f"by a dry run of this model, the peak is then {peak}"
    return Advice(f"{move.name[:1].upper()}{move.name[1:]}", reason)


def remedies(incident: Incident, cause: Cause) -> Iterator[Advice]:
    """Yield the remedies of a cause, the most useful first."""
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
            f"up to {format_bytes(incident.cache)}",
            incident.cache,
        )


def _of_what_was_seen(incident: Incident, cause: Cause) -> Iterator[Advice]:
    if cause == "training":
        yield from sorted(of_states(incident), key=lambda advice: -advice.bytes)
    elif cause == "another model" and (other := incident.seen.other):
        yield Advice(
            f"Delete what an earlier run has left: {other.at}",
            "it is not part of what ran; a cell that is run again makes a new model beside the earlier one",
            format_bytes(other.bytes),
            other.bytes,
        )
    elif cause in {"leak", "graphs"} and (kept := incident.seen.kept):
        yield Advice(
            f"Store values in {kept.path}, without their graphs: .item() for one number, else .detach()",
            "a tensor with a graph holds everything that its backward pass needs",
            format_bytes(kept.bytes),
            kept.bytes,
        )
    elif cause == "leak":
        yield Advice(
            "Free what accumulates from step to step; %memholders lists what holds it",
            "a loss stored with its graph, a list of outputs or a cache grows with every step "
            "(loss.item() is only the number)",
            format_bytes(incident.known_growth),
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
            f"about {format_bytes(saved)}",
            saved,
            is_tried=True,
        )


def _of_fragmentation(incident: Incident) -> Iterator[Advice]:
    blocks, largest = incident.blocks, incident.largest_free
    if blocks is None or not blocks.expandable:
        free = f"; the largest free piece is {format_bytes(largest)}" if largest > 0 else ""
        yield Advice(
            "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before CUDA is initialised (in a new "
            "kernel)",
            f"expandable segments grow instead of being cut into pieces{free}",
            f"up to {format_bytes(incident.slack)}",
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
            format_bytes(blocks.private_free),
            blocks.private_free,
        )


def _less_cache(incident: Incident, cache: Cache) -> Advice:
    room = incident.room_for_cache
    # A growing cache leaves free pieces, up to its own size; the temporaries of all rows took all the room.
    rows = int(cache.rows * room / (2 * cache.whole + room)) if cache.layers > 1 else 0
    size = format_bytes(rows * cache.whole / cache.rows)
    fewer = "Generate for fewer sequences at a time, or set" if cache.rows > 1 else "Set"
    return Advice(
        f"{fewer} a smaller max_new_tokens",
        f"about {format_count(rows)} of those {format_count(cache.rows)} sequences fit, prompt included: "
        f"their cache takes {size}, and the rest of the room is left for copies and temporaries"
        if rows
        else "the cache grows with each sequence and each token",
        is_tried=True,
    )


def _stop_processes(incident: Incident) -> Advice:
    biggest = sorted(incident.processes, key=lambda process: -process[1])[:3]
    named = ", ".join(f"process {pid} ({format_bytes(size)})" for pid, size in biggest)
    listed = "; nvidia-smi lists them" if incident.device.key.startswith("cuda") else ""
    return Advice(
        "Stop other processes on the GPU" + (f": {named}" if named else listed),
        "another notebook's kernel holds its memory until it is shut down",
        "" if named else format_bytes(incident.others),
        incident.others,
    )


def _raise_limit(incident: Incident) -> Advice:
    if incident.on_the_host:
        return Advice(
            f"Raise the limit ({incident.host.command}, or the memory of the batch job)",
            f"this process may map {format_bytes(incident.host.limit)} in total",
        )
    needed = incident.reserved + max(incident.asked, to_come(incident))
    twentieths = math.ceil(20 * needed / incident.total) if needed < incident.total else 20
    module = torch_module(incident.device.key)
    return Advice(
        f"Raise the limit: {module}.set_per_process_memory_fraction({min(twentieths, 20) / 20:g})",
        f"{format_bytes(incident.free)} of the device is free, but this process may not use it",
    )


def _in_chunks(incident: Incident) -> Advice:
    if not incident.is_beyond:
        return Advice("Process it in chunks", "a smaller request would have fit")
    multiple = incident.asked / incident.total
    factor = format_count(multiple) if multiple >= 10 else f"{multiple:.1f}"
    owner = "the machine's" if incident.on_the_host else "the GPU's"
    return Advice(
        "Check the shape of the tensor, or process it in chunks",
        f"a single request {factor}\u00d7 {owner} memory is usually a shape mistake",
    )


def _left_behind(incident: Incident) -> Iterator[Advice]:
    if incident.seen.freed >= KEPT_FROM:
        freed = format_bytes(incident.seen.freed)
        yield Advice(
            "Run %memholders --free errors before the next attempt; %memholders lists what else is held",
            f"the traceback of the last error alone holds {freed}",
            freed,
            incident.seen.freed,
        )


def savings(incident: Incident) -> Iterator[Advice]:
    """Yield the changes that may save memory."""
    yield from _of_the_request(incident)
    if evaluating(incident):
        yield from _of_evaluation(incident)
    yield from of_states(incident)
    if training(incident):
        yield from _of_activations(incident)
    yield from _of_weights(incident)


def _of_the_request(incident: Incident) -> Iterator[Advice]:
    asked, longest = format_bytes(incident.asked), incident.count("longest")
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
        values = (
            f"{format_count(vocabulary)} values" if vocabulary else "one value per vocabulary entry"
        )
        yield Advice(
            "Compute the loss without all logits at once: use_liger_kernel=True, or in chunks of the "
            "sequence",
            f"the request is for the logits: {values} for each token",
            f"this request, {asked}, and as much again for its gradient",
            incident.asked,
        )


def _of_evaluation(incident: Incident) -> Iterator[Advice]:
    is_gathering = running(incident, "gathering")
    if is_gathering or incident.grown > incident.asked:
        grown = max(incident.grown, 0.0)
        more = f": {format_bytes(grown)} more than at its start" if grown > 0 else ""
        yield Advice(
            "Set prediction_loss_only=True, or reduce each prediction (preprocess_logits_for_metrics)"
            if incident.on_the_host  # where eval_accumulation_steps would move nothing
            else "Set eval_accumulation_steps, or prediction_loss_only=True if no metric needs the "
            "predictions",
            f"predictions stay {'in memory' if incident.on_the_host else 'on the GPU'} until the evaluation "
            f"ends{more}",
            f"up to {format_bytes(grown)}" if grown > 0 else "",
            grown,
            is_tried=True,
        )
    if not is_gathering:
        yield Advice(
            "Use a smaller per_device_eval_batch_size",
            "memory ran out in an evaluation's forward pass; its batch size is independent of the training's",
            bytes=incident.part("activations") / 2,
            is_tried=True,
        )


def of_states(incident: Incident) -> Iterator[Advice]:
    """Yield the changes that make gradients and optimizer states smaller."""
    contents, states = incident.contents, incident.part("optimizer")
    missing, names = incident.seen.states, [name.lower() for name in contents.optimizers]
    whole = states + missing
    # Adam keeps two states as large as the weights.
    may_be_adam = not names or any("adam" in name and "8bit" not in name for name in names)
    is_large = whole >= STATES_FROM * max(incident.allocated, whole)
    if may_be_adam and is_large and (training(incident) or in_optimizer(incident)):
        yield Advice(
            'Use optim="adamw_8bit", or optim="adafactor", which has almost no states',
            f"the optimizer's states will take {format_bytes(whole)}"
            if missing
            else f"the optimizer states take {format_bytes(states)}",
            f"about three quarters of that, {format_bytes(0.75 * whole)}, or nearly all of it",
            whole,
            is_tried=True,
        )
    freed = incident.part("gradients") + incident.seen.gradients + whole
    is_all = 0 < contents.parameters <= contents.trainable
    if training(incident) and is_all and freed >= DOMINATES_FROM * incident.allocated:
        yield Advice(
            "Train adapters (LoRA, with peft) instead of all weights",
            f"all {format_count(contents.parameters)} parameters are trainable; their gradients and "
            f"optimizer states take {format_bytes(freed)}",
            f"nearly all of that, {format_bytes(freed)}",
            freed,
            is_tried=True,
        )
    if in_optimizer(incident) and may_be_adam and states > 0 and not missing:
        yield Advice(
            'Use a fused optimizer: optim="adamw_torch_fused", or AdamW(…, fused=True)',
            "memory ran out in optimizer.step(); unfused, it allocates temporaries as large as the weights",
            f"up to {format_bytes(incident.part('weights'))}",
            incident.part("weights") / 2,
        )


def _of_activations(incident: Incident) -> Iterator[Advice]:
    activations = incident.part("activations")
    if not activations >= DOMINATES_FROM * incident.allocated > 0:
        return
    samples, longest = incident.batch_samples, incident.count("longest")
    if not checkpointed(incident):
        yield Advice(
            f"Turn on gradient checkpointing ({checkpointing_option()}=True)",
            f"activations and temporaries take {with_share(activations, incident)}",
            bytes=0.6 * activations,
            is_tried=True,
        )
    if samples >= 2:
        of_length = f" sequences of {format_count(longest)} tokens" if longest > 0 else ""
        yield Advice(
            f"Halve the batch size to {format_count(samples // 2)} and double gradient_accumulation_steps",
            f"a batch of {format_count(samples)}{of_length} needs {format_bytes(activations)} of activations "
            "and temporaries, which scale with batch size",
            f"about {format_bytes(activations / 2)}",
            activations / 2,
            is_tried=True,
        )
    if _could_be_bfloat16(incident) and incident.autocast is False:
        yield Advice(
            "Train with bf16=True",
            "the weights are float32 without autocast, and this GPU supports bfloat16",
            bytes=0.2 * activations,
            is_tried=True,
        )
    if not samples >= 2 and longest >= LONG:
        yield Advice(
            "Use shorter sequences (max_length, or truncation)",
            f"the batch is a single sequence of {format_count(longest)} tokens and cannot be smaller",
            f"about {format_bytes(activations / 2)} at half the length",
            activations / 2,
            is_tried=True,
        )


def _of_weights(incident: Incident) -> Iterator[Advice]:
    weights = incident.part("weights")
    if not weights >= WEIGHTS_FROM * incident.ceiling:
        return
    if _could_be_bfloat16(incident):
        yield Advice(
            "Load the model with dtype=torch.bfloat16",
            f"the weights are float32 and take {with_share(weights, incident)}",
            f"half of them, {format_bytes(weights / 2)}",
            weights / 2,
            is_tried=True,
        )
    is_16_bit = _usual_dtype(incident) in {"", "bfloat16", "float16"}
    if is_16_bit and not incident.model.quantized and not incident.on_the_host:
        saved = (1 - _FOUR_BITS_OF_SIXTEEN) * weights
        yield Advice(
            "Load the weights in 4 bit (BitsAndBytesConfig(load_in_4bit=True)) and train adapters",
            f"the weights take {with_share(weights, incident)}",
            f"about {format_bytes(saved)}: 4.5 bits per weight instead of 16",
            saved,
        )


def _could_be_bfloat16(incident: Incident) -> bool:
    return _usual_dtype(incident) == "float32" and incident.capability >= BF16_FROM


def _usual_dtype(incident: Incident) -> str:
    """Return the dtype of most of the weights; empty if unknown."""
    dtypes = incident.contents.dtypes
    return max(dtypes, key=dtypes.__getitem__, default="")
