"""What the pages of the documentation tell to type runs, block after block, where no GPU is needed."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from tests.data import ROOT
from tests.data.pages import BLOCKS, PAGES, Block
from tests.kernel.over_ipc import run_notebook

TO_RUN = [page for page in PAGES if any(one.page == page and not one.why_not for one in BLOCKS)]

READER = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
import torch
from transformers import GPT2Config, GPT2LMHeadModel
import hfmem_widget
from tests.trainer import tiny

%reload_ext hfmem_widget

def make_trainer(**options):
    return tiny.make_trainer(Path("out"), **options)

def alert(finding):
    pass

Trainer = tiny.InOrder
data = tiny.rows((8,) * 8)
loader = torch.utils.data.DataLoader(data, batch_size=4)
arguments = tiny.arguments(Path("out"))
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=512, n_embd=16, n_layer=1, n_head=2))
optimizer = torch.optim.AdamW(model.parameters())
inputs = {{"input_ids": torch.ones(1, 4, dtype=torch.long)}}
trainer, checkpointing_trainer = make_trainer(), make_trainer(gradient_checkpointing=True)
with hfmem_widget.watch("before", quiet=True) as session:
    trainer.train()
"""
"""What a reader has: a model, data, a Trainer, and something that was watched."""

SMALLER = ("num_hidden_layers=24", "num_hidden_layers=2")
"""What a page says, and what takes a test seconds less to forecast."""


@pytest.mark.slow
def test_the_pages_run_from_top_to_bottom(tmp_path: Path, torch_command: list[str]) -> None:
    """No block ends in an error, for a reader who has what the page assumes; one kernel runs them all."""
    blocks = []
    for page in TO_RUN:
        blocks.append(Block(page, 0, READER, ""))
        blocks += (one for one in BLOCKS if one.page == page and not one.why_not)
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(block.code.replace(*SMALLER)) for block in blocks]
    )
    place = {"metadata": {"path": str(tmp_path)}}
    run_notebook(notebook, torch_command, allow_errors=True, resources=place)
    errors = {
        block.place: f"{output.ename}: {output.evalue}"
        for block, cell in zip(blocks, notebook.cells, strict=True)
        for output in cell.outputs
        if output.output_type == "error"
    }

    assert len(blocks) > 2 * len(TO_RUN) > 20
    assert errors == {}
