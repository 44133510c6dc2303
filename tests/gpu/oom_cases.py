"""Code that runs out of memory on a GPU: training, loading, generating, each for a reason of its own."""

from typing import NamedTuple


class Provoked(NamedTuple):
    """How an error is provoked, why it then happens, and words of the first thing to change."""

    scenario: str
    cause: str
    advice: str = ""
    before: str = ""
    attach: str = ""
    after: str = ""
    is_observed: bool = True


FULL_OF_WEIGHTS = """
class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ParameterList()

def scenario():
    global model
    model = Layers()
    for _ in range(30):
        model.layers.append(torch.nn.Parameter(bytes_of(FREE / 20.5)))
"""

FRAGMENTED = """
def scenario():
    segment = FREE // 12 // (1 << 21) * (1 << 21)
    kept, holes = [], []
    while torch.cuda.mem_get_info()[0] > segment:
        whole = bytes_of(segment)
        del whole  # cached: the next two are cut from it
        kept.append(bytes_of(segment / 8))
        holes.append(bytes_of(segment * 7 / 8))
    del holes
    return bytes_of(segment)
"""

ANOTHER_PROCESS = """
import subprocess
HOLD = '''
import sys, torch
kept = torch.empty(int(sys.argv[1]), dtype=torch.uint8, device="cuda")
print("ready", flush=True)
sys.stdin.read()
'''
other = subprocess.Popen([sys.executable, "-c", HOLD, str(int(FREE * 0.75))], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, text=True)
assert other.stdout.readline().strip() == "ready"

def scenario():
    return bytes_of(FREE * 0.5)
"""

ATTENTION = """
from transformers import BertConfig, BertModel
TOKENS, HEADS = 32768, 64

def scenario():
    global model
    config = BertConfig(vocab_size=100, hidden_size=512, num_hidden_layers=1, num_attention_heads=HEADS,
                        intermediate_size=512, max_position_embeddings=TOKENS, attn_implementation="eager")
    with torch.device("cuda"):
        model = BertModel(config, add_pooling_layer=False)
        ids = torch.ones(1, TOKENS, dtype=torch.long)
    with torch.no_grad():
        return model(ids)
"""

LOGITS = """
from transformers import GPT2Config, GPT2LMHeadModel
VOCABULARY = 200_000

def scenario():
    global model
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=1024, n_embd=64, n_layer=1, n_head=4)
    with torch.device("cuda"):
        model = GPT2LMHeadModel(config)
        ids = torch.ones(int(0.55 * TOTAL / (4 * VOCABULARY * 1024)), 1024, dtype=torch.long)
    with hfmem_widget.span("step", tokens=ids.numel(), samples=len(ids), longest=1024):
        model(ids, labels=ids).loss.backward()
"""

LIMIT = """
torch.cuda.set_per_process_memory_fraction(0.05)

def scenario():
    kept = bytes_of(TOTAL * 0.03)
    return bytes_of(TOTAL * 0.03)
"""

LEAK = """
def scenario():
    weight = bytes_of(64 << 20, requires_grad=True)
    weight.data.zero_()
    losses = []
    for number in range(200):
        with hfmem_widget.span("step", step=number):
            wide = weight[: 1 << 20].expand(int(FREE / 30) // (4 << 20), -1)
            losses.append(wide.exp().sum())
"""

FIRST_STEP = """
class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ParameterList(
            torch.nn.Parameter(bytes_of(FREE * 0.3 / 16)) for _ in range(16))

def scenario():
    global model, optimizer
    model = Layers()
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter)
    with hfmem_widget.span("step"), hfmem_widget.span("optimizer"):
        optimizer.step()
"""

TRAINER = """
import tempfile
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
from transformers.utils import logging
logging.set_verbosity_error()

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4096
    def __getitem__(self, index):
        return {"input_ids": torch.full((512,), 7), "labels": torch.tensor(0)}

def arguments(**options):
    return TrainingArguments(tempfile.mkdtemp(), report_to="none", disable_tqdm=True, save_strategy="no",
                             logging_strategy="no", dataloader_pin_memory=False, **options)
"""

EVALUATION = (
    TRAINER
    + """
class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
    def forward(self, input_ids, labels=None):
        size = int(FREE / 40) // (4 * len(input_ids))
        return {"loss": self.weight.sum(), "logits": torch.empty(len(input_ids), size, device="cuda")}

def scenario():
    global trainer
    trainer = Trainer(Wide(), arguments(per_device_eval_batch_size=8), eval_dataset=Rows(),
                      compute_metrics=lambda _: {})
    trainer.evaluate()
"""
)

ACTIVATIONS = (
    TRAINER
    + """
def scenario():
    global trainer
    config = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
                        intermediate_size=4096)
    size = int(4 * TOTAL / (2.6 * GIB))  # with four rows of 512 tokens the activations take about 3 GiB
    trainer = Trainer(BertForSequenceClassification(config),
                      arguments(per_device_train_batch_size=size, max_steps=2), train_dataset=Rows())
    trainer.train()
"""
)

BF16 = "Load the model with dtype=torch.bfloat16"
ATTACH = "from hfmem_widget.drivers import install\ninstall.attach()"

CASES = {
    "full of weights": Provoked(FULL_OF_WEIGHTS, "full", BF16),
    "fragmentation": Provoked(
        FRAGMENTED, "fragmentation", "Set PYTORCH_CUDA_ALLOC_CONF=expandable"
    ),
    "another process": Provoked(
        ANOTHER_PROCESS,
        "others",
        "Stop other processes on the GPU",
        after="other.kill(); other.wait()",
    ),
    "attention scores": Provoked(
        ATTENTION, "huge", 'Load the model with attn_implementation="sdpa"'
    ),
    "logits": Provoked(LOGITS, "huge", "Compute the loss without all logits"),
    "a limit": Provoked(LIMIT, "limit", "Raise the limit"),
    "losses with their graphs": Provoked(LEAK, "leak", "Store values in"),
    "states of the first step": Provoked(FIRST_STEP, "training", "adamw_8bit"),
    "predictions of an evaluation": Provoked(
        EVALUATION, "full", "Set eval_accumulation_steps", attach=ATTACH
    ),
    "activations of a training": Provoked(
        ACTIVATIONS, "full", "radient checkpointing", attach=ATTACH
    ),
    "full, cudaMallocAsync": Provoked(
        FULL_OF_WEIGHTS,
        "full",
        BF16,
        before='os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync"',
        is_observed=False,
    ),
    "full, expandable segments": Provoked(
        FULL_OF_WEIGHTS,
        "full",
        BF16,
        before='os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"',
    ),
}

SQUARE = """
def forward(x):
    return wide(x).pow(2).sum()

def scenario():
    x = torch.randn(2048, 2048, device="cuda", requires_grad=True)
    forward(x).backward()
"""

RECOMPUTED = """
from torch.utils.checkpoint import checkpoint

# Forward keeps nothing: two blocks of 3.1 GiB, and a third of which it has cut its results. Made again for
# the backward pass, each of the five is kept.
torch.cuda.set_per_process_memory_fraction(12 * GIB / torch.cuda.mem_get_info()[1])

def block(x):
    for _ in range(5):
        x = wide(x).pow(2).sum(0)
    return x

def scenario():
    x = torch.randn(2048, 2048, device="cuda", requires_grad=True)
    checkpoint(block, x, use_reentrant={reentrant}).sum().backward()
"""

OWN_FUNCTION = """
class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        one = wide(x)
        two = one + 1
        return (one * two).sum(0) * gradient

def scenario():
    x = torch.randn(2048, 2048, device="cuda", requires_grad=True)
    Squared.apply(x).sum().backward()
"""

COMPILED = """
from torch._dynamo import compiled_autograd

def scenario():
    x = torch.randn(2048, 2048, device="cuda", requires_grad=True)
    loss = wide(x).pow(2).sum()
    with compiled_autograd._enable(torch.compile(backend="eager")):
        loss.backward()
"""

PARALLEL = """
class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(2048, 2048))

    def forward(self, x):
        return wide(self.weight * x.mean()).pow(2).sum().unsqueeze(0)

def scenario():
    for number in range(torch.cuda.device_count()):
        torch.cuda.set_per_process_memory_fraction(8 * GIB / torch.cuda.mem_get_info(number)[1], number)
    model = torch.nn.DataParallel(Wide().cuda())
    model(torch.ones(8, 1, device="cuda")).sum().backward()
"""

BACKWARDS = {
    "native": (SQUARE, "", ""),
    "checkpoint": (RECOMPUTED.format(reentrant=False), "checkpoint recomputation", "block"),
    "reentrant": (RECOMPUTED.format(reentrant=True), "checkpoint recomputation", "block"),
    "a Function of one's own": (OWN_FUNCTION, "", "backward"),
    "compiled autograd": (COMPILED, "", ""),
    "DataParallel": (PARALLEL, "", ""),
}
"""Where a backward pass runs out, words of the place, and what is among its calls."""

CHECKPOINTED_TRAINER = (
    TRAINER
    + """
def scenario():
    global trainer
    config = BertConfig(hidden_size=1024, num_hidden_layers=4, num_attention_heads=16,
                        intermediate_size=4096, attn_implementation="eager")
    # One layer's scores take a fifth of the device: three of them fit, as forward makes, and not five.
    size = int(0.2 * TOTAL / (16 * 512 * 512 * 4))
    model = BertForSequenceClassification(config)
    model.gradient_checkpointing_enable()
    trainer = Trainer(model, arguments(per_device_train_batch_size=size, max_steps=2), train_dataset=Rows())
    trainer.train()
"""
)
