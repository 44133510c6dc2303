"""Scripted out-of-memory errors of a device that is full of a model's own memory."""

from hfmem_widget.features.oom.model import ModelFacts, Seen
from hfmem_widget.features.oom.observer import LiveBlocks
from hfmem_widget.session import Contents, Finding
from hfmem_widget.sources.heap.model import Holder
from hfmem_widget.text import GIB, MIB
from tests.data.oom_incidents import blocks, case, spans

LLAMA, ADAM = ("LlamaForCausalLM",), ("AdamW",)
FLOAT32 = Contents(LLAMA, ADAM, 10**9, 10**9, {"float32": int(4e9)}, 146, 0)
BFLOAT16 = Contents(LLAMA, ADAM, 20 * 10**9, 20 * 10**9, {"bfloat16": int(40e9)}, 400, 0)
LORA = Contents(("PeftModel",), ADAM, 20 * 10**9, 20 * 10**6, {"bfloat16": int(40e9)}, 900, 0)
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
    "weights": 4.0, "optimizer": 8.0, "gradients": 4.0, "activations": 61.0, "context": 0.6,
}  # fmt: skip
FULL = (
    case(
        "full of activations, float32 on a card that has bfloat16", "full",
        asked=2, free=1, parts=FULL_OF_ACTIVATIONS, path=TRAINING, contents=FLOAT32,
        capability=(9, 0), autocast=False,
        blocks=blocks(1.4, 0.5, biggest=(
            LiveBlocks(2 * GIB, 12, "modeling_llama.py, line 180, in forward"),
            LiveBlocks(1 * GIB, 24, "a cell, line 4, in attend"),
            LiveBlocks(512 * MIB, 8, ""),
        )),
        advice=("_checkpointing=True", "gradient_accumulation_steps", "Train with bf16=True"),
        never=(
            "attn_implementation", "Load the model", "LoRA", "eval_accumulation_steps",
            "shorter sequences",
        ),
    ),
    case(
        "full of weights, and one layer more, which alone is not much", "full",
        asked=4, free=2, parts={"weights": 77.0}, contents=FLOAT32, capability=(9, 0),
        advice=("Load the model with dtype=torch.bfloat16",), never=("Process it in chunks",),
    ),
    case(
        "the same with checkpointing and autocast on", "full",
        asked=2, free=1, parts=FULL_OF_ACTIVATIONS, path=TRAINING, contents=FLOAT32,
        capability=(9, 0), autocast=True, model=ModelFacts(checkpointing=True),
        advice=("gradient_accumulation_steps",), never=("checkpointing", "bf16=True"),
    ),
    case(
        "the same on a card without bfloat16", "full",
        asked=2, free=1, parts=FULL_OF_ACTIVATIONS, path=TRAINING, contents=FLOAT32,
        capability=(7, 5), autocast=False,
        advice=("_checkpointing=True", "gradient_accumulation_steps"), never=("bf16=True",),
    ),
    case(
        "a batch of one long sequence", "full",
        asked=1, free=0.5, parts=FULL_OF_ACTIVATIONS, path=BATCH_OF_ONE, contents=FLOAT32,
        capability=(9, 0),
        advice=("_checkpointing=True", "Use shorter sequences"),
        never=("gradient_accumulation_steps",),
    ),
    case(
        "recomputing activations: checkpointing is on already", "full",
        asked=1, free=0.5, parts=FULL_OF_ACTIVATIONS, path=BATCH_OF_ONE,
        calls=("torch.nn.modules.linear.forward", "torch.utils.checkpoint.recompute_fn"),
        advice=("Use shorter sequences",), never=("gradient checkpointing",),
    ),
    case(
        "the optimizer makes its states in the first step", "training",
        asked=0.5, free=0.2,
        parts={"weights": 26, "gradients": 26, "optimizer": 26, "context": 0.6}, path=FIRST_STEP,
        contents=FLOAT32, capability=(9, 0),
        calls=("torch.optim.adamw._init_group", "torch.optim.adamw.step"),
        seen=Seen(states=int(26 * GIB), optimizers=("AdamW",)),
        advice=("Train adapters", 'Use optim="adamw_8bit"'), never=("checkpointing", "fused"),
    ),
    case(
        "temporaries of a later optimizer step", "full",
        asked=0.5, free=0.2,
        parts={"weights": 18, "gradients": 18, "optimizer": 36, "activations": 6},
        path=spans("train", "epoch", "step", "optimizer", step=9), contents=FLOAT32,
        calls=("torch._foreach_sqrt", "torch.optim.adamw.step"),
        advice=("Train adapters", 'Use optim="adamw_8bit"', "Use a fused optimizer"),
    ),
    case(
        "full of float32 weights while a model is loaded", "full",
        asked=0.5, free=0.1, parts={"weights": 79.0, "context": 0.6}, path=spans("load"),
        contents=FLOAT32, capability=(8, 0),
        advice=("Load the model with dtype=torch.bfloat16",),
        never=("4 bits", "checkpointing", "adapters"),
    ),
    case(
        "full of 16-bit weights", "full",
        asked=0.5, free=0.1, parts={"weights": 79.0}, path=spans("load"), contents=BFLOAT16,
        capability=(9, 0),
        advice=("load_in_4bit=True",), never=("dtype=torch.bfloat16",),
    ),
    case(
        "full of weights that are quantised already", "full",
        asked=0.5, free=0.1, parts={"weights": 79.0}, contents=BFLOAT16,
        model=ModelFacts(quantized=True),
        never=("4 bits",),
    ),
    case(
        "adapters that train: all weights do not", "full",
        asked=1, free=0.5,
        parts={"weights": 35, "optimizer": 0.2, "gradients": 0.1, "activations": 42},
        path=TRAINING, contents=LORA, capability=(9, 0), autocast=True,
        advice=("_checkpointing=True", "gradient_accumulation_steps"),
        never=("LoRA", "adamw_8bit", "bf16=True"),
    ),
)  # fmt: skip
