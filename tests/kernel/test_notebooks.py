"""Notebooks run from top to bottom and say what their text says; what pages tell to type runs.

The notebooks about the quickstart and the Trainer run in a real JupyterLab, in `tests/browser`.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.data import ROOT
from tests.data.pages import BLOCKS, PAGES, Block
from tests.kernel.over_ipc import run_notebook

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def run(path: Path, command: list[str], smaller: Mapping[str, str] | None = None) -> Any:
    """Return a notebook with its outputs; `smaller` has smaller sizes for a CPU, with the same statements."""
    notebook = nbformat.read(path, as_version=4)
    for large, small in (smaller or {}).items():
        assert any(large in cell.source for cell in notebook.cells)
        for cell in notebook.cells:
            cell.source = cell.source.replace(large, small)
    return run_notebook(notebook, command)


def text_of(notebook: Any) -> str:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    plain = [(one.get("text", ""), one.get("data", {}).get("text/plain", "")) for one in outputs]
    return "\n".join(stream + shown for stream, shown in plain)


TO_TRY = [path for path in NOTEBOOKS if path != NOTEBOOKS[2]]
LEAK = (" grows by ", "has run")
"""What is said of memory that grows; none of the notebooks has a leak but the one that is about them."""


@pytest.mark.parametrize("path", TO_TRY, ids=lambda path: path.stem)
def test_the_notebooks_to_try_are_kept_without_outputs(path: Path) -> None:
    """A reader sees only outputs of their own machine."""
    assert not any(cell.get("outputs") for cell in nbformat.read(path, as_version=4).cells)


def test_the_stored_outputs_of_the_anatomy_are_of_a_gpu() -> None:
    """Readers without a GPU see a whole run on one, small and without an error."""
    notebook = nbformat.read(NOTEBOOKS[2], as_version=4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    text = text_of(notebook)

    assert outputs
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
    assert "cuda:0" in text
    # As the tables are headed today: outputs of an older version would teach what is gone.
    tables = (
        "at the peak (exact)  of 79.6 GiB",
        "compared with vanilla",
        "less memory above its start",
    )
    assert [words for words in tables if words not in text] == []
    assert "site-packages" not in text
    assert "widgets" not in notebook.metadata
    assert NOTEBOOKS[2].stat().st_size < 2 << 20


@pytest.mark.slow
def test_the_anatomy_notebook_tells_what_each_technique_saves(torch_command: list[str]) -> None:
    """One table has a row for each technique that could run, with the right counted parts."""
    notebook = run(NOTEBOOKS[2], torch_command, {"else (32, 128)": "else (12, 128)"})
    text = text_of(notebook)
    table = next(cell for cell in notebook.cells if 'table["certainty"]' in cell.source)
    rows: dict[str, list[str]] = {}
    for line in table.outputs[0].data["text/plain"].splitlines():
        name, *figures = line.split() or [""]
        # What does not fit pandas' width comes again further down.
        if len(figures) > 3 and figures[0].isdigit():
            rows.setdefault(name, figures)
    weights, optimizer = ({name: int(row[at]) for name, row in rows.items()} for at in (2, 3))

    assert all(f'memwatch "{name}"' in text for name in rows)
    assert {"vanilla", "accumulation", "checkpointing", "bf16", "Adafactor"} < set(rows)
    assert len(set(weights.values())) == 1
    # AdamW keeps two numbers for each weight, Adafactor next to nothing.
    assert abs(optimizer["vanilla"] - 2 * weights["vanilla"]) <= 1
    assert optimizer["Adafactor"] * 4 < optimizer["vanilla"]
    assert "at the peak" in text
    assert "compared with vanilla" in text
    assert not any(words in text for words in LEAK)


def test_the_leak_notebook_finds_its_leak_and_who_holds_it(torch_command: list[str]) -> None:
    """The card of the faulty loop names both in one sentence; the fixed loop has no such card."""
    text = text_of(run(NOTEBOOKS[3], torch_command))
    cards = [part.partition(" chart:")[0] for part in text.split("memwatch ")]
    (leaking,) = [part for part in cards if part.startswith('"leaking"') and " grows by " in part]
    fixed = [part for part in cards if part.startswith('"fixed"')]

    assert "losses[0..59] and the autograd graphs behind it hold" in leaking
    assert fixed
    assert not any(words in part for part in fixed for words in LEAK)
    assert "detached tensors in losses" in text
    assert "Nothing grew." in text
    assert "0 findings" in text


@pytest.mark.slow
def test_the_notebook_about_running_out_explains_and_frees(torch_command: list[str]) -> None:
    """Two cells fail with their causes; the error's memory is named, freed and measured; the rest fits."""
    notebook = run(NOTEBOOKS[4], torch_command)
    text = text_of(notebook)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]

    assert len([output.ename for output in outputs if output.output_type == "error"]) == 2
    assert "out of memory \u00b7" in text
    assert "Limit reached: " in text
    assert "Oversized request: 1.31 TiB in one piece" in text
    assert "step 1" in text
    assert "the error of cell [" in text
    assert "errors freed" in text
    assert "eight at a time (baseline" in text
    assert re.search(r"exceeded its budget of \d+\.0 MiB", text)
    assert not any(words in text for words in LEAK)


@pytest.mark.slow
def test_the_notebook_about_keeping_records_compares_and_alerts(torch_command: list[str]) -> None:
    """A recording opens unchanged; the history has the drift of runs; a finding calls the function."""
    notebook = run(NOTEBOOKS[5], torch_command)
    text = text_of(notebook)
    opened = next(cell for cell in notebook.cells if cell.source.startswith("adamw = "))
    history = next(cell for cell in notebook.cells if cell.source.startswith("%memcompare --sort"))

    assert 'memwatch "AdamW"' in opened.outputs[0].data["text/plain"]
    assert "'adamw.html'" in text
    assert "AdamW (baseline)" in text
    assert " \u00b7 4 runs \u00b7 " in history.outputs[0].data["text/plain"]
    # On the heap the kernel's own odd tens of kilobytes count, too.
    assert re.search(r"\+1(5\.[6-9]|6\.[0-4]) MiB a run", history.outputs[0].data["text/plain"])
    assert "warn cpu exceeded its budget of 10.0 MiB" in text
    assert not any(words in text for words in LEAK)


@pytest.mark.slow
def test_two_ranks_are_in_one_chart(torch_command: list[str]) -> None:
    """The card names the worst, phases are compared over ranks, and each rank is a session of its own."""
    notebook = run(NOTEBOOKS[6], torch_command, {"width=768": "width=256"})
    text = text_of(notebook)
    skew = next(cell for cell in notebook.cells if "run.skew()" in cell.source)

    assert 'memwatch "two ranks"' in text
    assert "2 ranks · worst peak" in text
    assert "(rank 1" in text
    assert "backward" in skew.outputs[0].data["text/plain"]
    assert 'memwatch "rank 1"' in text


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
    """No block fails, for a reader with the page's requirements; one kernel runs them all."""
    blocks = []
    for page in TO_RUN:
        blocks.append(Block(page, 0, READER, ""))
        blocks += (one for one in BLOCKS if one.page == page and not one.why_not)
    codes = [block.code.replace(*SMALLER) for block in blocks]
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, codes)))
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
