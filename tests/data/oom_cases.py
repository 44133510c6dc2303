"""Scripted out-of-memory errors: the known figures of each, its cause, and the advice that is due."""

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
from tests.data.oom_incidents import HOST, Case, blocks, case, spans

CASES = (
    *FULL,
    case(
        "pieces of segments", "fragmentation",
        asked=4, free=0.8, parts={"weights": 20, "activations": 30, "cache": 28}, path=TRAINING,
        blocks=blocks(28, 1.1), lengths=(64.0, 2048.0),
        advice=("Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "Pad to a few fixed lengths"),
        never=("checkpointing", "gradient_accumulation_steps"),
    ),
    case(
        "pieces of segments, by the text alone", "fragmentation",
        asked=6.64, free=6.22, total=19.92, allocated=5.34, reserved=12.44,
        advice=("Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",),
    ),
    case(
        "pieces of segments that grow already", "fragmentation",
        asked=4, free=0.8, parts={"weights": 20, "activations": 30, "cache": 28},
        blocks=blocks(28, 1.1, expandable=True),
        never=("expandable_segments",),
    ),
    case(
        "a few free pieces, as there always are", "full",
        asked=0.02, free=0.01, parts={"weights": 78.5, "cache": 0.5}, blocks=blocks(0.5, 0.01),
        never=("expandable_segments",),
    ),
    case(
        "another process has most", "others",
        asked=30, free=18.7, parts={"weights": 0.1}, others=60.0, processes=((830, 60.0 * GIB),),
        advice=("process 830 (60.0 GiB)",), never=("nvidia-smi",),
    ),
    case(
        "other processes without a name", "others",
        asked=2, free=1, parts={"weights": 10}, others=68.0,
        advice=("nvidia-smi",),
    ),
    case(
        "a desktop takes a little, and is not the reason", "full",
        asked=2, free=1, parts={"weights": 77}, others=1.5, contents=BFLOAT16,
        advice=("load_in_4bit=True",), never=("Stop other processes",),
    ),
    case(
        "more than the device has", "huge",
        asked=400, free=79, parts={"weights": 0.5},
        advice=("5.0\u00d7",), never=("Stop other processes",),
    ),
    case(
        "attention that makes its scores", "huge",
        asked=64, free=60, parts={"weights": 4, "activations": 15}, path=spans("forward"),
        calls=(
            "transformers.models.bert.modeling_bert.eager_attention_forward",
            "torch.nn.Module._call_impl",
        ),
        advice=('Load the model with attn_implementation="sdpa"',),
        never=("Process it in chunks",),
    ),
    case(
        "logits, by their size", "full",
        asked=7.83, free=3, parts=FULL_OF_ACTIVATIONS, path=TRAINING,
        model=ModelFacts(vocabulary=128_256), contents=FLOAT32, autocast=True, capability=(9, 0),
        advice=("_checkpointing=True", "gradient_accumulation_steps", "use_liger_kernel=True"),
    ),
    case(
        "logits, by the function that asked", "huge",
        asked=40, free=20, parts={"weights": 4, "activations": 50}, path=TRAINING,
        calls=("torch.nn.functional.cross_entropy", "transformers.loss.loss_utils.ForCausalLMLoss"),
        advice=("use_liger_kernel=True", "_checkpointing=True"), never=("Process it in chunks",),
    ),
    case(
        "a limit on this process", "limit",
        asked=0.5, free=70, parts={"weights": 7.6}, allowed=8.0,
        advice=("Raise the limit: torch.cuda.set_per_process_memory_fraction(0.15)",),
    ),
    case(
        "a limit by which a request was rejected before the driver was asked", "limit",
        asked=4, free=60, allocated=14, reserved=14, allowed=16.0, preemptive=True,
        advice=("Raise the limit",),
    ),
    case(
        "a limit, but pieces that would do", "fragmentation",
        asked=1.17, free=76, allocated=0.54, reserved=1.96, allowed=2.8, blocks=blocks(1.42, 0.03),
        advice=("Set PYTORCH_CUDA_ALLOC_CONF",), never=("Raise the limit",),
    ),
    case(
        "a limit, but a request beyond any device", "huge",
        asked=400, free=79, allocated=0.3, reserved=0.4, allowed=2.8,
        advice=("Check the shape",),
    ),
    case(
        "losses kept with their graphs", "leak",
        asked=0.5, free=0.2, parts=FULL_OF_ACTIVATIONS, path=TRAINING, growth=LEAK,
        contents=FLOAT32,
        advice=("%memholders",), never=("checkpointing", "gradient_accumulation_steps"),
    ),
    case(
        "growth that did not fill it", "full",
        asked=2, free=1, parts=FULL_OF_ACTIVATIONS, path=TRAINING, growth=SMALL_LEAK,
        contents=FLOAT32,
        advice=("_checkpointing=True",), never=("%memholders",),
    ),
    case(
        "an evaluation that keeps its predictions", "full",
        asked=3, free=1, parts={"weights": 4, "activations": 72}, path=EVALUATION, grown=70.0,
        calls=("transformers.trainer_pt_utils.nested_concat", "transformers.trainer.evaluation_loop"),
        advice=("Set eval_accumulation_steps",),
        never=("checkpointing", "gradient_accumulation_steps", "per_device_eval_batch_size"),
    ),
    case(
        "an evaluation's batch", "full",
        asked=3, free=1, parts={"weights": 4, "activations": 72}, path=EVALUATION,
        calls=("torch.nn.functional.softmax", "transformers.trainer.prediction_step"),
        advice=("Use a smaller per_device_eval_batch_size",), never=("checkpointing",),
    ),
    case(
        "cuBLAS beside a full cache", "full",
        asked=float("nan"), free=0.01, parts={"weights": 20, "activations": 20, "cache": 38},
        origin="cublas",
        advice=("torch.cuda.empty_cache()",), never=("expandable_segments",),
    ),
    case(
        "pinned memory", "full",
        asked=float("nan"), free=70, parts={"weights": 2}, origin="cuda runtime",
        calls=("torch.utils.data._utils.pin_memory.pin_memory",),
        never=("Stop other processes",),
    ),
    case(
        "cudaMallocAsync", "full",
        asked=0.67, free=0.03, allocated=74.1, reserved=78, origin="cuda async",
        never=("expandable_segments",),
    ),
    case(
        "an error leaves its tensors behind", "full",
        asked=2, free=1, parts={"weights": 77}, contents=BFLOAT16, seen=Seen(freed=int(31 * GIB)),
        advice=("load_in_4bit=True", "%memholders --free errors"),
    ),
    case(
        "losses kept with their graphs, under a limit", "graphs",
        asked=0.03, free=74.5, allowed=4.0, parts={"weights": 0.06, "unattributed": 3.9},
        seen=Seen(kept=KEPT),
        advice=("Store values in kept[0..29]", "Raise the limit"),
        never=("%memholders --free errors",),
    ),
    case(
        "a model of an earlier run, under a limit", "another model",
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
        advice=("Delete what an earlier run has left: runs[0]", "Raise the limit"),
        never=("LoRA",),
    ),
    case(
        "a training that does not fit", "training",
        asked=0.19, free=76.6, allowed=2.0,
        parts={"weights": 0.76, "gradients": 0.57, "libraries": 0.06, "activations": 0.38, "cache": 0.05},
        path=spans("train", "epoch", "step", "backward", samples=1, longest=128, tokens=128),
        contents=FLOAT32,
        seen=Seen(gradients=int(0.19 * GIB), states=int(1.52 * GIB), optimizers=("AdamW",)),
        advice=("Train adapters", "adamw_8bit", "Raise the limit"), never=("Halve the batch",),
    ),
    case(
        "one long row among short ones", "long rows",
        asked=0.375, free=72.7, allowed=6.0, parts={"weights": 0.25, "activations": 5.48},
        path=spans("train", "epoch", "step", "forward", samples=64, longest=512, tokens=64 * 512),
        contents=FLOAT32, capability=(9, 0), autocast=False, usual=(48.0, 48.0),
        advice=("Truncate to a shorter length (max_length=48)",),
    ),
    case(
        "rows twice as long as the others, nearly", "full",
        asked=0.375, free=0.1, total=6.0, parts={"weights": 0.25, "activations": 5.48},
        path=spans("train", "epoch", "step", "forward", samples=64, longest=511, tokens=64 * 511),
        contents=FLOAT32, usual=(48.0, 256.0),
    ),
    case(
        "a KV cache that grows, in a prefill", "kv cache",
        asked=0.17, free=75.6, allowed=3.0, blocks=blocks(0.36, 0.0625),
        parts={"weights": 1.01, "kv_cache": 1.0, "activations": 0.47, "cache": 0.36},
        path=spans("block", "prefill"), seen=Seen(cache=Cache(64, 2256, GIB, 8.8125 * GIB, 8)),
        advice=("Generate for fewer sequences at a time", "Raise the limit"),
        never=("expandable_segments",),
    ),
    case(
        "a KV cache that fits, in pieces", "fragmentation",
        asked=4, free=0.8, parts={"weights": 20, "kv_cache": 20, "cache": 28},
        blocks=blocks(28, 1.1), path=spans("block", "decode"),
        seen=Seen(cache=Cache(4, 2256, 20 * GIB, 30 * GIB, 8)),
        advice=("expandable_segments",),
    ),
    case(
        "pieces of segments, while the states are yet to come", "training",
        asked=4, free=0.8, parts={"weights": 20, "activations": 30, "cache": 28}, path=TRAINING,
        blocks=blocks(28, 1.1),
        seen=Seen(gradients=int(20 * GIB), states=int(40 * GIB), optimizers=("AdamW",)),
    ),
    case(
        "CPU: more than the machine has", "huge",
        asked=2**20, free=60, total=64, device=HOST, origin="cpu", allocated=1,
        advice=("16,384\u00d7",),
    ),
    case(
        "CPU: a MemoryError that says nothing", "huge",
        asked=float("nan"), free=60, total=64, device=HOST, origin="python", allocated=1,
    ),
    case(
        "CPU: a limit of the shell's", "limit",
        asked=4, free=60, total=64, device=HOST, origin="numpy", host=HostLimit(8 * GIB, 6 * GIB),
        parts={"weights": 2, "unattributed": 1.5, "cache": 0.5, "others": 10},
        advice=("Raise the limit (ulimit -v",),
    ),
    case(
        "CPU: a leak that a limit of the shell's has stopped", "leak",
        asked=0.1, free=600, total=640, device=HOST, origin="numpy", host=HostLimit(80 * GIB, 79.95 * GIB),
        allocated=70, growth=LEAK, advice=("%memholders", "Raise the limit (ulimit -v"),
    ),
    case(
        "CPU: more than the machine has, and a limit of the shell's besides", "huge",
        asked=1000, free=60, total=64, device=HOST, origin="cpu", allocated=1,
        host=HostLimit(8 * GIB, 6 * GIB),
        advice=("Check the shape",), never=("Raise the limit",),
    ),
    case(
        "CPU: nothing left", "full",
        asked=4, free=0.5, total=64, device=HOST, origin="cpu", allocated=60,
    ),
    case(
        "CUDA says nothing, and the GPU has room", "huge",
        asked=float("nan"), free=70, parts={"weights": 2}, origin="cuda runtime",
    ),
    case(
        "predictions that are put together beside themselves", "full",
        asked=36, free=8, parts={"weights": 4, "activations": 66}, path=EVALUATION, grown=66.0,
        calls=("transformers.trainer_pt_utils.nested_concat",),
        advice=("Set eval_accumulation_steps",),
    ),
    Case("nothing known at all", Incident(Device("", ""), "cuda runtime"), "unknown"),
    case(
        "float32 weights on a card without bfloat16 are not 16 bits wide", "full",
        asked=0.5, free=0.1, parts={"weights": 79.0}, contents=FLOAT32, capability=(7, 0),
        never=("4 bits",),
    ),
    case(
        "predictions of an evaluation on the CPU", "full",
        asked=8, free=1, total=64, parts={"activations": 40}, path=spans("evaluate"), grown=30.0,
        device=HOST, origin="cpu",
        advice=("Set prediction_loss_only=True",), never=("eval_accumulation_steps", "GPU"),
    ),
    case(
        "what else takes memory of another maker's device", "others",
        asked=2, free=1, parts={"weights": 10}, others=68.0, origin="xpu",
        device=Device("xpu:0", "Data Center GPU Max"),
        advice=("Stop other processes",), never=("nvidia-smi",),
    ),
)  # fmt: skip
