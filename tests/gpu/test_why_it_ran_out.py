"""Why it ran out, provoked under a limit: what would have to change is named, whatever the allocator met.

``pytest -s`` prints each card.
"""

import re
import sys
from typing import NamedTuple

import pytest

from hfmem_widget.features.oom.advice import KEPT_FROM
from tests.gpu.conftest import Run

pytestmark = pytest.mark.whole_card

HARNESS = """
import os, sys, gc, tempfile
os.environ["HF_HUB_OFFLINE"] = "1"
import torch, transformers, hfmem_widget
from transformers import (BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel, LlamaConfig,
                          LlamaForCausalLM, Trainer, TrainingArguments)
transformers.logging.set_verbosity_error()
GIB = 1 << 30
torch.manual_seed(0)

def limit(gib):
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(gib * GIB / total)

def arguments(**options):
    return TrainingArguments(tempfile.mkdtemp(), report_to="none", disable_tqdm=True, save_strategy="no",
                             logging_strategy="no", dataloader_pin_memory=False, **options)

{scenario}

error = None
try:
    with hfmem_widget.watch("provoked", quiet=True) as session:
        scenario()
except torch.OutOfMemoryError as caught:
    error, held = str(caught), torch.cuda.memory_allocated()
assert error is not None, "nothing ran out"
torch.cuda.set_per_process_memory_fraction(1.0)
for name in ("last_type", "last_value", "last_traceback", "last_exc"):
    vars(sys).pop(name, None)
gc.collect()
finding = next(one for one in session.findings if one.kind == "oom" and one.severity == "critical")
spans = [(span.kind, session.value(span.after, "cuda:0/kv_cache")) for span in session.spans if span.after]
report({{"evidence": dict(finding.evidence), "advice": list(finding.advice), "spans": spans,
         "freed": held - torch.cuda.memory_allocated(), "card": session._repr_mimebundle_()["text/plain"]}})
"""

GRAPHS = """
limit(4)
model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(4)]).cuda()
kept = []

def scenario():
    for _ in range(500):
        kept.append(model(torch.randn(4096, 2048, device="cuda")).sum())
"""

GRAPHS_OF_A_FUNCTION = """
limit(4)
model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(4)]).cuda()

def scenario():
    losses = {}
    for step in range(500):
        losses[step] = model(torch.randn(4096, 2048, device="cuda")).sum()
"""

RERUN = """
limit(5)

def make():
    model = LlamaForCausalLM(LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=12,
                                         vocab_size=32000)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randint(5, 31000, (2, 128), device="cuda")
    model(x, labels=x).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer

runs = [make()]

def scenario():
    for _ in range(3):
        runs.append(make())
"""

ANEW = """
limit(1.5)
CONFIG = LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, vocab_size=32000)
model = LlamaForCausalLM(CONFIG).cuda()

def scenario():
    global model
    model = LlamaForCausalLM(CONFIG).cuda()
"""

BACKWARD = """
class Rows(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, index):
        row = torch.arange(128)
        return {"input_ids": row, "labels": row.clone()}

model = GPT2LMHeadModel(GPT2Config(n_layer=12, n_embd=1024, n_head=16))
limit(2)
trainer = Trainer(model=model, args=arguments(per_device_train_batch_size=1, max_steps=6),
                  train_dataset=Rows())
scenario = trainer.train
"""

LONG_ROW = """
from torch.nn.utils.rnn import pad_sequence
limit(6)
LONG = range(3 * 64, 3 * 64 + 2)

class Rows(torch.utils.data.Dataset):
    def __len__(self): return 640
    def __getitem__(self, index):
        return {"input_ids": torch.full((512 if index in LONG else 48,), 5), "labels": 0}

def collate(rows):
    ids = pad_sequence([row["input_ids"] for row in rows], batch_first=True)
    return {"input_ids": ids, "labels": torch.tensor([row["labels"] for row in rows])}

class InOrder(Trainer):
    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)

trainer = InOrder(model=BertForSequenceClassification(BertConfig(num_hidden_layers=6)),
                  args=arguments(per_device_train_batch_size=64, max_steps=6), train_dataset=Rows(),
                  data_collator=collate)
scenario = trainer.train
"""

GENERATION = """
limit(3)
model = LlamaForCausalLM(LlamaConfig(hidden_size=2048, intermediate_size=5632, num_hidden_layers=8,
                                     num_attention_heads=32, num_key_value_heads=32,
                                     vocab_size=32000)).to(torch.bfloat16).cuda().eval()

def scenario(rows=64):
    x = torch.randint(5, 31000, (rows, 256), device="cuda")
    with torch.no_grad():
        model.generate(x, max_new_tokens=2000, min_new_tokens=2000, do_sample=False, pad_token_id=0)
"""


class Provoked(NamedTuple):
    """A scenario, its cause, words of the diagnosis, and of the first advice."""

    scenario: str
    cause: str
    says: tuple[str, ...]
    advice: str


CASES = {
    "losses with their graphs": Provoked(
        GRAPHS, "graphs", ("kept[0..", "the graphs of"), "Store values in kept[0.."
    ),
    "losses with their graphs, in a function": Provoked(
        GRAPHS_OF_A_FUNCTION, "graphs", ("losses[0",), "Store values in"
    ),
    "a cell run again": Provoked(
        RERUN,
        "another model",
        ("Another LlamaForCausalLM of 220 M parameters with its optimizer is alive: runs[0] (2.",),
        "Delete what an earlier run has left: runs[0]",
    ),
    "a model made anew": Provoked(
        ANEW,
        "another model",
        ("Another LlamaForCausalLM of 220 M parameters is alive: model (8",),
        "Delete what an earlier run has left: model",
    ),
    "a backward pass": Provoked(
        BACKWARD,
        "training",
        ("of gradients and 1.5", "of optimizer states (AdamW)"),
        "Train adapters",
    ),
    "one long row": Provoked(
        LONG_ROW,
        "long rows",
        ("64 \u00d7 512 tokens; the other steps had 48.",),
        "Truncate to a shorter length (max_length=48)",
    ),
    "a generation that grows": Provoked(
        GENERATION,
        "kv cache",
        ("64 sequences of 2,256 tokens need 8.81 GiB",),
        "Generate for fewer sequences",
    ),
}
"""The cache of the last takes 64 KiB a token (8 layers, 2,048 keys and as many values of two bytes each)."""


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_would_have_to_change_is_named(run_python: Run, case: Provoked) -> None:
    """First, by a rule or a dry run, the limit after it; `%memholders --free errors` frees what it says."""
    report = run_python(HARNESS.format(scenario=case.scenario))
    sys.stdout.write(
        "\n".join(["", report["card"], report["evidence"]["diagnosis"], *report["advice"], ""])
    )
    assert report["evidence"]["cause"] == case.cause
    for words in case.says:
        assert words in report["evidence"]["diagnosis"]
    first = report["advice"][0]
    assert first.startswith(case.advice) or "by a dry run of this model" in first.lower()
    limits = [at for at, text in enumerate(report["advice"]) if text.startswith("Raise the limit")]
    assert limits
    assert limits[0] > 0
    promised = re.search(r"error alone holds ([\d.]+) ([MG])iB", " ".join(report["advice"]))
    size = float(promised[1]) * 2.0 ** {"M": 20, "G": 30}[promised[2]] if promised else 0.0
    assert report["freed"] == pytest.approx(size, rel=0.05, abs=KEPT_FROM)


def test_a_cache_in_a_prefill_is_counted_as_one(run_python: Run) -> None:
    """At the end of a prefill that ran out of memory, and on the card."""
    report = run_python(HARNESS.format(scenario=GENERATION))
    (held,) = [size for kind, size in report["spans"] if kind == "prefill"]
    assert held > 256 << 20


def test_as_many_sequences_as_are_said_to_fit_do(run_python: Run) -> None:
    """The same call with so many rows, under the same limit, does not run out."""
    look = HARNESS.format(scenario=GENERATION)
    look += """
import re
rows = int(re.search(r"(\\d+) (of those 64 sequences|sequences at a time)", finding.advice[0])[1])
limit(3)
torch.cuda.empty_cache()
torch.cuda.reset_peak_memory_stats()
scenario(rows)
report({"rows": rows, "peak": torch.cuda.max_memory_reserved()})
"""
    seen = run_python(look)
    sys.stdout.write(f"{seen['rows']} sequences: {seen['peak'] / 2**30:.2f} GiB were reserved\n")
    assert 4 <= seen["rows"] <= 12  # with 12 it has run out
