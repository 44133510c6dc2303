"""A real kernel executes a notebook on the GPU, as nbclient and papermill do."""

from pathlib import Path

import pytest

from tests.gpu.notebook import execute, plain, printed
from tests.gpu.scenarios import MODEL, QUIET_CHECK

pytest.importorskip("ipykernel", reason="notebooks need ipykernel")
nbformat = pytest.importorskip("nbformat", reason="notebooks need nbformat")
nbclient = pytest.importorskip("nbclient", reason="notebooks need nbclient")

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))

TRAINED = {
    "01-quickstart": "fine-tune",
    "02-trainer": "fine-tune",
    "03-anatomy": "vanilla",
    "04-find-a-leak": "leaking",
    "05-out-of-memory": "eight at a time",
    "06-keep-and-compare": "AdamW",
}
"""What a notebook calls its first training that ends; 07 has a card without a GPU where there is but one."""

SAYS = {
    "04-find-a-leak": (
        " grows by ",
        "losses[0..59] and the autograd graphs behind it hold",
        "Nothing grew.",
        "0 findings",
    ),
    "05-out-of-memory": (
        "Limit reached: ",
        "Oversized request: 1.31 TiB in one piece",
        "errors freed",
        "exceeded its budget of 1.00 GiB",
    ),
}
"""What a notebook is there to show, and must say on a GPU too."""


@pytest.mark.whole_card
def test_memwatch_on_leaves_cuda_alone() -> None:
    """`%load_ext` and `%memwatch on` leave CUDA down, NVML's figure as it was, a fork able to use CUDA."""
    notebook = execute(
        QUIET_CHECK + "before = device_used()",
        "%load_ext hfmem_widget",
        "%memwatch on",
        "import time, torch; time.sleep(0.5)",
        "print(torch.cuda.is_initialized(), device_used() - before, child_can_use_cuda())",
    )

    assert printed(notebook.cells[-1]) == "False 0 4.0"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_notebook_runs_with_exact_peaks(path: Path) -> None:
    """The notebooks run on the GPU, with bert-large's shape, and their cards are exact."""
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=400, kernel_name="python3").execute()
    label = TRAINED.get(path.stem)
    if label is None:
        return
    card = next(plain(cell) for cell in notebook.cells if f'--label "{label}"' in cell.source)

    assert f'memwatch "{label}"' in card
    assert "cuda:0" in card
    assert "exact" in card
    text = "\n".join(plain(cell) + printed(cell) for cell in notebook.cells if "outputs" in cell)
    assert [words for words in SAYS.get(path.stem, ()) if words not in text] == []


def test_a_model_loaded_in_a_watched_cell_stays_on_the_card() -> None:
    """What the cell leaves behind is the model's bytes."""
    notebook = execute(
        "%load_ext hfmem_widget",
        MODEL,
        "%%memwatch -o session\nmodel = make_model(2)",
        "span = session.spans[0]\n"
        "left = session.value(span.after, 'cuda:0/requested')\n"
        "print(int(left), sum(p.numel() * p.element_size() for p in model.parameters())"
        " + sum(b.numel() * b.element_size() for b in model.buffers()))",
    )
    left, expected = printed(notebook.cells[-1]).split()

    assert left == expected
