"""Leaks on a real GPU, whose allocator counts to the byte; and what looks like one there and is none."""

from tests.gpu.conftest import Run

LOOP = """
import time
import torch
import hfmem_widget
from hfmem_widget import span
from hfmem_widget.features.leaks.findings import finding_of
from hfmem_widget.features.leaks.trends import trends_of

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())

def train(rows):
    batch = torch.randn(rows, 1024, device="cuda")
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return batch

def leaks_in(session):
    trends = [one for one in trends_of(session, session.spans[0]) if one.device.startswith("cuda")]
    titles = [finding_of(session, session.spans[0], one).title for one in trends]
    return [[one.what, one.slope, one.low, one.high, one.first, one.points] for one in trends] + titles
"""


def test_kept_graphs_are_counted_to_the_byte(run_python: Run) -> None:
    """Every step keeps as much as the last: the slope is what one graph takes, and its bounds are too."""
    (trend, title), one_graph = run_python.after(LOOP)("""
train(256)
before = torch.cuda.memory_allocated()
kept = model(torch.ones(256, 1024, device="cuda")).square().mean()
one_graph = torch.cuda.memory_allocated() - before
del kept
with hfmem_widget.watch("leak", quiet=True) as session:
    losses = []
    for _ in range(40):
        with span("step", tokens=256):
            train(256)
            losses.append(model(torch.ones(256, 1024, device="cuda")).square().mean())
report([leaks_in(session), one_graph])
""")

    assert trend[0] == "a step"
    assert trend[1:4] == [one_graph] * 3
    assert " a step since step 6: " in title


def test_a_healthy_training_has_no_trend(run_python: Run) -> None:
    """Warm-up, batches of any length, cuBLAS' workspaces, a cache that fills, a model that comes later."""
    assert (
        run_python.after(LOOP)("""
import copy, random
chance, cache, later = random.Random(0), {}, None
with hfmem_widget.watch("healthy", quiet=True) as session:
    for step in range(160):
        rows = chance.randrange(8, 2048)
        with span("step", tokens=rows):
            batch = train(rows)
        cache[chance.randrange(12)] = torch.zeros(1 << 20, device="cuda")
        if step == 90:
            later = copy.deepcopy(model)
        if step % 40 == 39:
            with span("evaluate"), torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
                model(torch.ones(4096, 1024, device="cuda"))
report(leaks_in(session))
""")
        == []
    )
