"""Scripted out-of-memory errors: what is known of each, why it happened, and what ought to be said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hfmem_widget.analysis.parts import LABELS
from hfmem_widget.features.oom.model import (
    Cache,
    HostLimit,
    Incident,
    ModelFacts,
    OtherModels,
    Seen,
)
from hfmem_widget.features.oom.observer import Blocks, LiveBlocks
from hfmem_widget.session import Anatomy, Contents, Device, Finding, Part, Sample, Span, SpanKind
from hfmem_widget.sources.heap.model import Holder
from hfmem_widget.text import GIB, MIB

GPU = Device("cuda:0", "NVIDIA H200", "GPU-0", 140 * GIB)
HOST = Device("cpu", "AMD EPYC 9454", "", 64 * GIB)

NOTHING: Mapping[str, float] = {}


class Case(NamedTuple):
    """One incident, its cause, words of its advice in this order, and words that it must not have."""

    name: str
    incident: Incident
    cause: str
    advice: tuple[str, ...] = ()
    never: tuple[str, ...] = ()


def spans(*kinds: SpanKind, **counts: float) -> tuple[Span, ...]:
    """Return open spans within a cell, the innermost `step` with counts."""
    labels: dict[SpanKind, str] = {
        "step": f"step {counts.get('step', 1):.0f}",
        "epoch": "epoch 1 of 3",
    }
    return tuple(
        Span(at, kind, labels.get(kind, kind), 0.0, Sample(0.0, ()), parent=at - 1 or None,
             counts=counts if kind == "step" else {})
        for at, kind in enumerate(_kinds(kinds), start=1)
    )  # fmt: skip


def _kinds(kinds: tuple[SpanKind, ...]) -> tuple[SpanKind, ...]:
    return ("cell", *kinds)


def anatomy(device: Device, allocated: float, parts: Mapping[str, float]) -> Anatomy:
    """Return the parts at the instant of the error, given in GiB."""
    told = tuple(
        Part(name, LABELS[name], parts[name] * GIB) for name in LABELS if parts.get(name, 0) > 0
    )
    return Anatomy(device, "when it ran out", 1.0, allocated, allocated, allocated, told, "exact")


def incident(
    *, asked: float, free: float, parts: Mapping[str, float] = NOTHING, **more: Any
) -> Incident:
    """Return an error on an 80 GiB share of a GPU; sizes in GiB, parts up to the cache allocated."""
    total = more.pop("total", 80.0) * GIB
    held = sum(
        size for name, size in parts.items() if name not in {"cache", "context", "others", "free"}
    )
    allocated = more.pop("allocated", held) * GIB
    reserved = more.pop("reserved", (allocated / GIB) + parts.get("cache", 0.0)) * GIB
    for name in ("allowed", "others", "grown"):
        if name in more:
            more[name] *= GIB
    device = more.pop("device", GPU)
    beside = {"others": more.get("others", 0.0) / GIB, "free": free} if parts else {}
    return Incident(
        device=device,
        origin=more.pop("origin", "cuda"),
        asked=asked * GIB,
        free=free * GIB,
        total=total,
        allocated=allocated,
        reserved=reserved,
        anatomy=anatomy(device, allocated, {**parts, **beside}) if parts else None,
        **more,
    )


def blocks(free: float, largest: float, **more: Any) -> Blocks:
    """Return blocks with so many GiB free, in pieces of at most so many."""
    return Blocks(count=200, free=free * GIB, largest_free=largest * GIB, **more)


FLOAT32 = Contents(
    ("LlamaForCausalLM",), ("AdamW",), 1_000_000_000, 1_000_000_000, {"float32": int(4e9)}, 146, 0
)
BFLOAT16 = Contents(
    ("LlamaForCausalLM",),
    ("AdamW",),
    20_000_000_000,
    20_000_000_000,
    {"bfloat16": int(40e9)},
    400,
    0,
)
LORA = Contents(
    ("PeftModel",), ("AdamW",), 20_000_000_000, 20_000_000, {"bfloat16": int(40e9)}, 900, 0
)
KEPT = Holder(
    "kept[0..29]", "tensors", "cuda:0", int(3.88 * GIB), 60, (4096, 2048), "float32", int(3.88 * GIB), 30,
    pattern="kept[*]",
)  # fmt: skip
LEAK = Finding(
    "leak", "warn", "Allocated memory grows by 1.20 GiB a step since step 3: 48.0 GiB so far.",
    {"device": "cuda:0", "grown": int(48 * GIB)},
)  # fmt: skip
SMALL_LEAK = Finding(
    "leak", "warn", "Allocated memory grows.", {"device": "cuda:0", "grown": int(0.2 * GIB)}
)

TRAINING = spans(
    "train", "epoch", "step", "forward", step=12, samples=8, longest=2048, tokens=16384
)
FIRST_STEP = spans(
    "train", "epoch", "step", "optimizer", step=1, samples=1, longest=512, tokens=512
)
BATCH_OF_ONE = spans(
    "train", "epoch", "step", "backward", step=3, samples=1, longest=8192, tokens=8192
)
EVALUATION = spans("train", "evaluate")
FULL_OF_ACTIVATIONS = {
    "weights": 4.0,
    "optimizer": 8.0,
    "gradients": 4.0,
    "activations": 61.0,
    "context": 0.6,
}

CASES = (
    Case(
        "full of activations, float32 on a card that has bfloat16",
        incident(
            asked=2, free=1, parts=FULL_OF_ACTIVATIONS, path=TRAINING, contents=FLOAT32, capability=(9, 0),
            autocast=False, blocks=blocks(1.4, 0.5, biggest=(
                LiveBlocks(2 * GIB, 12, "modeling_llama.py, line 180, in forward"),
                LiveBlocks(1 * GIB, 24, "a cell, line 4, in attend"),
                LiveBlocks(512 * MIB, 8, ""),
            )),
        ),
        "full",
        ("_checkpointing=True", "gradient_accumulation_steps", "Train with bf16=True"),
        ("attn_implementation", "Load the model", "LoRA", "eval_accumulation_steps", "shorter sequences"),
    ),
    Case(
        "full of weights, and one layer more, which alone is not much",
        incident(asked=4, free=2, parts={"weights": 77.0}, contents=FLOAT32, capability=(9, 0)),
        "full",
        ("Load the model with dtype=torch.bfloat16",),
        ("Process it in chunks",),
    ),
    Case(
        "the same with checkpointing and autocast on",
        incident(
            asked=2, free=1, parts=FULL_OF_ACTIVATIONS, path=TRAINING, contents=FLOAT32, capability=(9, 0),
            autocast=True, model=ModelFacts(checkpointing=True),
        ),
        "full",
        ("gradient_accumulation_steps",),
        ("checkpointing", "bf16=True"),
    ),
    Case(
        "the same on a card without bfloat16",
        incident(
            asked=2, free=1, parts=FULL_OF_ACTIVATIONS, path=TRAINING, contents=FLOAT32, capability=(7, 5),
            autocast=False,
        ),
        "full",
        ("_checkpointing=True", "gradient_accumulation_steps"),
        ("bf16=True",),
    ),
    Case(
        "a batch of one long sequence",
        incident(
            asked=1, free=0.5, parts=FULL_OF_ACTIVATIONS, path=BATCH_OF_ONE, contents=FLOAT32,
            capability=(9, 0),
        ),
        "full",
        ("_checkpointing=True", "Use shorter sequences"),
        ("gradient_accumulation_steps",),
    ),
    Case(
        "recomputing activations: checkpointing is on already",
        incident(
            asked=1, free=0.5, parts=FULL_OF_ACTIVATIONS, path=BATCH_OF_ONE,
            calls=("torch.nn.modules.linear.forward", "torch.utils.checkpoint.recompute_fn"),
        ),
        "full",
        ("Use shorter sequences",),
        ("gradient checkpointing",),
    ),
    Case(
        "the optimizer makes its states in the first step",
        incident(
            asked=0.5, free=0.2, parts={"weights": 26, "gradients": 26, "optimizer": 26, "context": 0.6},
            path=FIRST_STEP, contents=FLOAT32, capability=(9, 0),
            calls=("torch.optim.adamw._init_group", "torch.optim.adamw.step"),
            seen=Seen(states=int(26 * GIB), optimizers=("AdamW",)),
        ),
        "training",
        ("Train adapters", 'Use optim="adamw_8bit"'),
        ("checkpointing", "fused"),
    ),
    Case(
        "temporaries of a later optimizer step",
        incident(
            asked=0.5, free=0.2, parts={"weights": 18, "gradients": 18, "optimizer": 36, "activations": 6},
            path=spans("train", "epoch", "step", "optimizer", step=9), contents=FLOAT32,
            calls=("torch._foreach_sqrt", "torch.optim.adamw.step"),
        ),
        "full",
        ("Train adapters", 'Use optim="adamw_8bit"', "Use a fused optimizer"),
    ),
    Case(
        "full of float32 weights while a model is loaded",
        incident(
            asked=0.5, free=0.1, parts={"weights": 79.0, "context": 0.6}, path=spans("load"),
            contents=FLOAT32, capability=(8, 0),
        ),
        "full",
        ("Load the model with dtype=torch.bfloat16",),
        ("4 bits", "checkpointing", "adapters"),
    ),
    Case(
        "full of 16-bit weights",
        incident(
            asked=0.5, free=0.1, parts={"weights": 79.0}, path=spans("load"), contents=BFLOAT16,
            capability=(9, 0)
        ),
        "full",
        ("load_in_4bit=True",),
        ("dtype=torch.bfloat16",),
    ),
    Case(
        "full of weights that are quantised already",
        incident(
            asked=0.5, free=0.1, parts={"weights": 79.0}, contents=BFLOAT16, model=ModelFacts(quantized=True)
        ),
        "full",
        (),
        ("4 bits",),
    ),
    Case(
        "adapters that train: all weights do not",
        incident(
            asked=1, free=0.5, parts={"weights": 35, "optimizer": 0.2, "gradients": 0.1, "activations": 42},
            path=TRAINING, contents=LORA, capability=(9, 0), autocast=True,
        ),
        "full",
        ("_checkpointing=True", "gradient_accumulation_steps"),
        ("LoRA", "adamw_8bit", "bf16=True"),
    ),
    Case(
        "pieces of segments",
        incident(
            asked=4, free=0.8, parts={"weights": 20, "activations": 30, "cache": 28}, path=TRAINING,
            blocks=blocks(28, 1.1), lengths=(64.0, 2048.0),
        ),
        "fragmentation",
        ("Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "Pad to a few fixed lengths"),
        ("checkpointing", "gradient_accumulation_steps"),
    ),
    Case(
        "pieces of segments, by the text alone",
        incident(asked=6.64, free=6.22, total=19.92, allocated=5.34, reserved=12.44),
        "fragmentation",
        ("Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",),
    ),
    Case(
        "pieces of segments that grow already",
        incident(
            asked=4, free=0.8, parts={"weights": 20, "activations": 30, "cache": 28},
            blocks=blocks(28, 1.1, expandable=True),
        ),
        "fragmentation",
        (),
        ("expandable_segments",),
    ),
    Case(
        "a few free pieces, as there always are",
        incident(asked=0.02, free=0.01, parts={"weights": 78.5, "cache": 0.5}, blocks=blocks(0.5, 0.01)),
        "full",
        (),
        ("expandable_segments",),
    ),
    Case(
        "another process has most",
        incident(asked=30, free=18.7, parts={"weights": 0.1}, others=60.0, processes=((830, 60.0 * GIB),)),
        "others",
        ("process 830 (60.0 GiB)",),
        ("nvidia-smi",),
    ),
    Case(
        "other processes without a name",
        incident(asked=2, free=1, parts={"weights": 10}, others=68.0),
        "others",
        ("nvidia-smi",),
    ),
    Case(
        "a desktop takes a little, and is not the reason",
        incident(asked=2, free=1, parts={"weights": 77}, others=1.5, contents=BFLOAT16),
        "full",
        ("load_in_4bit=True",),
        ("Stop other processes",),
    ),
    Case(
        "more than the device has",
        incident(asked=400, free=79, parts={"weights": 0.5}),
        "huge",
        ("5.0\u00d7",),
        ("Stop other processes",),
    ),
    Case(
        "attention that makes its scores",
        incident(
            asked=64, free=60, parts={"weights": 4, "activations": 15}, path=spans("forward"),
            calls=("transformers.models.bert.modeling_bert.eager_attention_forward",
            "torch.nn.Module._call_impl"),
        ),
        "huge",
        ('Load the model with attn_implementation="sdpa"',),
        ("Process it in chunks",),
    ),
    Case(
        "logits, by their size",
        incident(
            asked=7.83, free=3, parts=FULL_OF_ACTIVATIONS, path=TRAINING,
            model=ModelFacts(vocabulary=128_256),
            contents=FLOAT32, autocast=True, capability=(9, 0),
        ),
        "full",
        ("_checkpointing=True", "gradient_accumulation_steps", "use_liger_kernel=True"),
    ),
    Case(
        "logits, by the function that asked",
        incident(
            asked=40, free=20, parts={"weights": 4, "activations": 50}, path=TRAINING,
            calls=("torch.nn.functional.cross_entropy", "transformers.loss.loss_utils.ForCausalLMLoss"),
        ),
        "huge",
        ("use_liger_kernel=True", "_checkpointing=True"),
        ("Process it in chunks",),
    ),
    Case(
        "a limit on this process",
        incident(asked=0.5, free=70, parts={"weights": 7.6}, allowed=8.0),
        "limit",
        ("Raise the limit: torch.cuda.set_per_process_memory_fraction(0.15)",),
    ),
    Case(
        "a limit by which a request was rejected before the driver was asked",
        incident(asked=4, free=60, allocated=14, reserved=14, allowed=16.0, preemptive=True),
        "limit",
        ("Raise the limit",),
    ),
    Case(
        "a limit, but pieces that would do",
        incident(asked=1.17, free=76, allocated=0.54, reserved=1.96, allowed=2.8, blocks=blocks(1.42, 0.03)),
        "fragmentation",
        ("Set PYTORCH_CUDA_ALLOC_CONF",),
        ("Raise the limit",),
    ),
    Case(
        "a limit, but a request beyond any device",
        incident(asked=400, free=79, allocated=0.3, reserved=0.4, allowed=2.8),
        "huge",
        ("Check the shape",),
    ),
    Case(
        "losses kept with their graphs",
        incident(
            asked=0.5, free=0.2, parts=FULL_OF_ACTIVATIONS, path=TRAINING, growth=LEAK, contents=FLOAT32,
        ),
        "leak",
        ("%memholders",),
        ("checkpointing", "gradient_accumulation_steps"),
    ),
    Case(
        "growth that did not fill it",
        incident(
            asked=2, free=1, parts=FULL_OF_ACTIVATIONS, path=TRAINING, growth=SMALL_LEAK, contents=FLOAT32,
        ),
        "full",
        ("_checkpointing=True",),
        ("%memholders",),
    ),
    Case(
        "an evaluation that keeps its predictions",
        incident(
            asked=3, free=1, parts={"weights": 4, "activations": 72}, path=EVALUATION, grown=70.0,
            calls=("transformers.trainer_pt_utils.nested_concat", "transformers.trainer.evaluation_loop"),
        ),
        "full",
        ("Set eval_accumulation_steps",),
        ("checkpointing", "gradient_accumulation_steps", "per_device_eval_batch_size"),
    ),
    Case(
        "an evaluation's batch",
        incident(
            asked=3, free=1, parts={"weights": 4, "activations": 72}, path=EVALUATION,
            calls=("torch.nn.functional.softmax", "transformers.trainer.prediction_step"),
        ),
        "full",
        ("Use a smaller per_device_eval_batch_size",),
        ("checkpointing",),
    ),
    Case(
        "cuBLAS beside a full cache",
        incident(
            asked=float("nan"), free=0.01, parts={"weights": 20, "activations": 20, "cache": 38},
            origin="cublas",
        ),
        "full",
        ("torch.cuda.empty_cache()",),
        ("expandable_segments",),
    ),
    Case(
        "pinned memory",
        incident(
            asked=float("nan"), free=70, parts={"weights": 2}, origin="cuda runtime",
            calls=("torch.utils.data._utils.pin_memory.pin_memory",),
        ),
        "full",
        (),
        ("Stop other processes",),
    ),
    Case(
        "cudaMallocAsync",
        incident(asked=0.67, free=0.03, allocated=74.1, reserved=78, origin="cuda async"),
        "full",
        (),
        ("expandable_segments",),
    ),
    Case(
        "an error leaves its tensors behind",
        incident(asked=2, free=1, parts={"weights": 77}, contents=BFLOAT16, seen=Seen(freed=int(31 * GIB))),
        "full",
        ("load_in_4bit=True", "%memholders --free errors"),
    ),
    Case(
        "losses kept with their graphs, under a limit",
        incident(
            asked=0.03, free=74.5, allowed=4.0, parts={"weights": 0.06, "unattributed": 3.9},
            seen=Seen(kept=KEPT),
        ),
        "graphs",
        ("Store values in kept[0..29]", "Raise the limit"),
        ("%memholders --free errors",),
    ),
    Case(
        "a model of an earlier run, under a limit",
        incident(
            asked=0.01, free=73.4, allowed=5.0,
            parts={"weights": 0.82, "optimizer": 0.62, "gradients": 0.82, "libraries": 0.06, "before": 2.46},
            path=spans("step", "optimizer"), contents=FLOAT32,
            seen=Seen(
                other=OtherModels(
                    "Another LlamaForCausalLM of 220 M parameters with its optimizer", "runs[0]",
                    int(2.46 * GIB),
                ),
                states=int(1.02 * GIB), optimizers=("AdamW",),
            ),
        ),
        "another model",
        ("Delete what an earlier run has left: runs[0]", "Raise the limit"),
        ("LoRA",),
    ),
    Case(
        "a training that does not fit",
        incident(
            asked=0.19, free=76.6, allowed=2.0,
            parts={"weights": 0.76, "gradients": 0.57, "libraries": 0.06, "activations": 0.38, "cache": 0.05},
            path=spans("train", "epoch", "step", "backward", samples=1, longest=128, tokens=128),
            contents=FLOAT32,
            seen=Seen(gradients=int(0.19 * GIB), states=int(1.52 * GIB), optimizers=("AdamW",)),
        ),
        "training",
        ("Train adapters", "adamw_8bit", "Raise the limit"),
        ("Halve the batch",),
    ),
    Case(
        "one long row among short ones",
        incident(
            asked=0.375, free=72.7, allowed=6.0, parts={"weights": 0.25, "activations": 5.48},
            path=spans("train", "epoch", "step", "forward", samples=64, longest=512, tokens=64 * 512),
            contents=FLOAT32, capability=(9, 0), autocast=False, usual=(48.0, 48.0),
        ),
        "long rows",
        ("Truncate to a shorter length (max_length=48)",),
    ),
    Case(
        "rows twice as long as the others, nearly",
        incident(
            asked=0.375, free=0.1, total=6.0, parts={"weights": 0.25, "activations": 5.48},
            path=spans("train", "epoch", "step", "forward", samples=64, longest=511, tokens=64 * 511),
            contents=FLOAT32, usual=(48.0, 256.0),
        ),
        "full",
    ),
    Case(
        "a KV cache that grows, in a prefill",
        incident(
            asked=0.17, free=75.6, allowed=3.0, blocks=blocks(0.36, 0.0625),
            parts={"weights": 1.01, "kv_cache": 1.0, "activations": 0.47, "cache": 0.36},
            path=spans("block", "prefill"), seen=Seen(cache=Cache(64, 2256, GIB, 8.8125 * GIB, 8)),
        ),
        "kv cache",
        ("Generate for fewer sequences at a time", "Raise the limit"),
        ("expandable_segments",),
    ),
    Case(
        "a KV cache that fits, in pieces",
        incident(
            asked=4, free=0.8, parts={"weights": 20, "kv_cache": 20, "cache": 28}, blocks=blocks(28, 1.1),
            path=spans("block", "decode"), seen=Seen(cache=Cache(4, 2256, 20 * GIB, 30 * GIB, 8)),
        ),
        "fragmentation",
        ("expandable_segments",),
    ),
    Case(
        "pieces of segments, while the states are yet to come",
        incident(
            asked=4, free=0.8, parts={"weights": 20, "activations": 30, "cache": 28}, path=TRAINING,
            blocks=blocks(28, 1.1),
            seen=Seen(gradients=int(20 * GIB), states=int(40 * GIB), optimizers=("AdamW",)),
        ),
        "training",
    ),
    Case(
        "CPU: more than the machine has",
        incident(asked=2**20, free=60, total=64, device=HOST, origin="cpu", allocated=1),
        "huge",
        ("16,384\u00d7",),
    ),
    Case(
        "CPU: a MemoryError that says nothing",
        incident(asked=float("nan"), free=60, total=64, device=HOST, origin="python", allocated=1),
        "huge",
    ),
    Case(
        "CPU: a limit of the shell's",
        incident(
            asked=4, free=60, total=64, device=HOST, origin="numpy", host=HostLimit(8 * GIB, 6 * GIB),
            parts={"weights": 2, "unattributed": 1.5, "cache": 0.5, "others": 10},
        ),
        "limit",
        ("Raise the limit (ulimit -v",),
    ),
    Case(
        "CPU: more than the machine has, and a limit of the shell's besides",
        incident(
            asked=1000, free=60, total=64, device=HOST, origin="cpu", allocated=1,
            host=HostLimit(8 * GIB, 6 * GIB),
        ),
        "huge",
        ("Check the shape",),
        ("Raise the limit",),
    ),
    Case(
        "CPU: nothing left",
        incident(asked=4, free=0.5, total=64, device=HOST, origin="cpu", allocated=60),
        "full",
    ),
    Case(
        "CUDA says nothing, and the GPU has room",
        incident(asked=float("nan"), free=70, parts={"weights": 2}, origin="cuda runtime"),
        "huge",
    ),
    Case(
        "predictions that are put together beside themselves",
        incident(
            asked=36, free=8, parts={"weights": 4, "activations": 66}, path=EVALUATION, grown=66.0,
            calls=("transformers.trainer_pt_utils.nested_concat",),
        ),
        "full",
        ("Set eval_accumulation_steps",),
    ),
    Case("nothing known at all", Incident(Device("", ""), "cuda runtime"), "unknown"),
    Case(
        "float32 weights on a card without bfloat16 are not 16 bits wide",
        incident(asked=0.5, free=0.1, parts={"weights": 79.0}, contents=FLOAT32, capability=(7, 0)),
        "full",
        (),
        ("4 bits",),
    ),
    Case(
        "predictions of an evaluation on the CPU",
        incident(
            asked=8, free=1, total=64, parts={"activations": 40}, path=spans("evaluate"), grown=30.0,
            device=HOST, origin="cpu",
        ),
        "full",
        ("Set prediction_loss_only=True",),
        ("eval_accumulation_steps", "GPU"),
    ),
    Case(
        "what else takes memory of another maker's device",
        incident(
            asked=2, free=1, parts={"weights": 10}, others=68.0, origin="xpu",
            device=Device("xpu:0", "Data Center GPU Max"),
        ),
        "others",
        ("Stop other processes",),
        ("nvidia-smi",),
    ),
)  # fmt: skip
