"""Scripted out-of-memory errors of a device that is full of what a model needs."""

from __future__ import annotations

from hfmem_widget.features.oom.model import ModelFacts, Seen
from hfmem_widget.features.oom.observer import LiveBlocks
from hfmem_widget.session import Contents, Finding
from hfmem_widget.sources.heap.model import Holder
from hfmem_widget.text import GIB, MIB
from tests.data.oom_incidents import Case, blocks, incident, spans

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
FULL = (
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
)  # fmt: skip
