"""Changes in the user's own calls: `tests/data/written_cells.txt` has the cells before and after."""

import ast
import re
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.inputtransformer2 import TransformerManager

from hfmem_widget.features.fit.write import made_anew, written
from hfmem_widget.session import Change
from tests.data import ROOT


@dataclass(frozen=True)
class Case:
    title: str
    changes: list[Change]
    cells: list[str]
    after: str


def change(text: str) -> Change:
    target, name, value = re.split("[ =]", text, maxsplit=2)
    return Change(cast("Any", target), name, value)


def cases() -> list[Case]:
    parsed = []
    text = (ROOT / "tests/data/written_cells.txt").read_text("utf-8")
    for case in re.split(r"^== ", text, flags=re.MULTILINE)[1:]:
        title, changes, rest = case.split("\n", 2)
        before, after = rest.removesuffix("\n").split("\n>>\n")
        texts = changes.removeprefix(":: ").split("; ")
        parsed.append(Case(title, [*map(change, texts)], before.split("\n--\n"), after))
    return parsed


CASES = cases()
CELLS = sorted({cell for case in CASES for cell in case.cells})
CHANGES = sorted({one for case in CASES for one in case.changes}, key=repr)
ARGUMENTS = [Change("arguments", "bf16", "True")]
PIECES = [
    *"()[]{}'\"\\#%!?;:,=*\t\r\n\f\x00\ud800ü€😀@", '"""', "\r\n", "f'{", "lambda x: ", "%%", "%%time\n",
    "def f():\n    ", "with a as b:\n    ", "@d\n", "**o", "x for x in y", "TrainingArguments(",
    "SFTConfig(", "bf16 = (\nFalse)", "args.bf16 = False\n", "\ntrainer.train()\n", "!ls \\\n", "\na?\n",
]  # fmt: skip

some_changes = st.lists(st.sampled_from(CHANGES), min_size=1, max_size=4)
real_cells = st.lists(st.sampled_from(CELLS), min_size=1, max_size=7)


@st.composite
def broken_cells(draw: st.DrawFn) -> list[str]:
    cells = draw(real_cells)
    for _ in range(draw(st.integers(1, 4))):
        which = draw(st.integers(0, len(cells) - 1))
        at = draw(st.integers(0, len(cells[which])))
        removed = draw(st.sampled_from([0, 0, 1, 9]))
        cells[which] = (
            cells[which][:at] + draw(st.sampled_from(PIECES)) + cells[which][at + removed :]
        )
    return cells


def as_ipython_runs(cell: str) -> str:
    """Return the Python code that IPython makes of a cell, and of the body of its cell magic."""
    body = "\n".join(line for line in cell.split("\n") if not line.startswith("%%"))
    return TransformerManager().transform_cell(body)


def is_python(cell: str) -> bool:
    try:
        ast.parse(cell)
    except (SyntaxError, ValueError):
        return False
    return True


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_a_cell_has_the_change(case: Case) -> None:
    """The user's own text stays except for the change; what the user has to do is in comments."""
    assert written(case.cells, case.changes) == case.after


@given(real_cells, some_changes)
def test_the_written_cell_can_be_run(cells: list[str], changes: list[Change]) -> None:
    """IPython parses it, whichever cells are joined."""
    assert is_python(as_ipython_runs(written(cells, changes)))


@given(real_cells | broken_cells(), some_changes)
def test_writing_again_changes_nothing(cells: list[str], changes: list[Change]) -> None:
    """A written cell already has the changes, the training and the comments."""
    once = written(cells, changes)
    assert written([*cells, once], changes) == once


@given(
    st.lists(st.text() | st.lists(st.sampled_from(PIECES)).map("".join), max_size=4)
    | broken_cells(),
    some_changes,
)
def test_any_text_gives_a_result(cells: list[str], changes: list[Change]) -> None:
    """If all cells are Python, the result is Python."""
    answer = written(cells, changes)
    assert answer
    assert is_python(answer) or not all(map(is_python, cells))


@pytest.mark.parametrize(
    "cell",
    ["-" * 40_000 + "1", "(" * 40_000, "a(" * 20_000, "a." * 20_000 + "a", "lambda:" * 6_000 + "1",
     "if 1:\n" * 8_000, "f'{" * 15_000, "!a\n" * 15_000, "\\\n" * 20_000, "args\n" * 100_000],
    ids=lambda cell: cell[:6],
)  # fmt: skip
def test_a_deep_or_huge_cell_is_skipped(cell: str) -> None:
    """The change goes to the call in another cell."""
    assert written(["TrainingArguments()\n", cell], ARGUMENTS).startswith(
        "TrainingArguments(bf16=True)\n"
    )


def test_lines_end_as_the_users_do() -> None:
    """In a cell from Windows, a new line ends like the others."""
    cell = "args = TrainingArguments(\r\n\t'out',\r\n)\r\nTrainer(m, args).train()\r\n"

    assert written([cell], ARGUMENTS) == cell.replace("'out',\r\n", "'out',\r\n\tbf16=True,\r\n")


def test_no_change_is_no_text() -> None:
    """Without changes the text is empty."""
    assert not written(["args = TrainingArguments('out')"], [])


@pytest.mark.parametrize("value", ["", ")", "1)\nimport os", "'"])
def test_a_value_that_does_not_fit_is_a_comment(value: str) -> None:
    """The user's cell stays as it is."""
    cell = "Trainer(model, TrainingArguments('out')).train()"
    answer = written([cell], [Change("arguments", "seed", value)])

    assert answer == f"{cell}\n# Add to TrainingArguments(...): seed={' '.join(value.split())}"


def test_changes_for_ranks_stay_out_of_a_cell_that_is_one_process() -> None:
    """They are a comment: FSDP fails in one process, and a rank has fewer rows."""
    changes = [
        Change("ranks", "fsdp", '"full_shard auto_wrap"'),
        Change("arguments", "bf16", "True"),
    ]
    lines = written(["args = TrainingArguments('out')"], changes).splitlines()
    comment = "# In a script that torchrun starts, add to TrainingArguments(...): "

    assert "args = TrainingArguments('out', bf16=True)" in lines
    assert f'{comment}fsdp="full_shard auto_wrap"' in lines


def test_a_keyword_that_is_asked_for_by_two_names_is_changed_once() -> None:
    """Of two names for one keyword, the last change counts."""
    cell = "model = AutoModel.from_pretrained('gpt2', dtype='auto')\nTrainer(model).train()"
    both = [Change("model", "torch_dtype", "None"), Change("model", "dtype", "torch.float16")]

    assert written([cell], both) == cell.replace("'auto'", "torch.float16")


def test_names_that_a_cell_assigns_first_may_be_freed() -> None:
    """Names that it reads first, or sets only in part, may not."""
    cell = "%%memwatch\nmodel = load()\nargs.bf16 = True\ndata = cut(data)\ntrainer = Trainer(model, args)"

    assert made_anew(f"{cell}\ntrainer.train()") == ["model", "trainer"]
