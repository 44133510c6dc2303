"""Scripted out-of-memory errors: what is known of each, why it happened, and what ought to be said."""

from __future__ import annotations

from hfmem_widget.features.oom.model import (
    Cache,
    HostLimit,
    Incident,
    ModelFacts,
    OtherModels,
    Seen,
)
from hfmem_widget.session import Device
from hfmem_widget.text import GIB
from tests.data.oom_full import (
    BFLOAT16,
    EVALUATION,
    FLOAT32,
    FULL,
    FULL_OF_ACTIVATIONS,
    KEPT,
    LEAK,
    SMALL_LEAK,
    TRAINING,
)
from tests.data.oom_incidents import HOST, Case, blocks, incident, spans

CASES = (
    *FULL,
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
