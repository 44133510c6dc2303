"""Comparing by line: recordings of small runs with one known change each, and the sentences about it."""

import linecache
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

import hfmem_widget
from hfmem_widget.features.compare.api import of_runs
from hfmem_widget.features.compare.by_line import changes_of
from hfmem_widget.features.compare.html import whole_bundle
from hfmem_widget.features.compare.model import Change, Comparison
from hfmem_widget.features.compare.text import markdown, verdicts
from hfmem_widget.session import Session
from hfmem_widget.session.stacks import BEFORE, LivePeak, Row, Site, StackRecording, Stacks
from tests.scenes import scripted_run
from tests.unit.features.compare.test_html import scaled
from tests.unit.view.test_hostile_text import CORPUS, Strict

pytest.importorskip("torch")

MIB = 1024**2

SCRIPT = """
import torch
from torch import nn
from torch.nn import functional

class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.register_buffer("mask", torch.zeros(48, 48))

    def forward(self, x):
        query, key, value = self.qkv(x).chunk(3, -1)
        return functional.scaled_dot_product_attention(query, key, value, self.mask)

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention = Attention(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(x)
        inner = functional.gelu(self.up(x))
        return x + self.down(inner)

def batch_of(size):
    return torch.randn(size, 48, 64)

def train():
    torch.manual_seed(0)
    model = nn.Sequential(Block(64), Block(64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kept = []
    for step in range(3):
        inputs = batch_of(4)
        outputs = model(inputs)
        loss = outputs.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(loss.item())

train()
"""

CELLS = (
    "import torch\ndef batch_of(size):\n    return torch.zeros(size, 1000)\n",
    "batch = batch_of(500)\n",
    "doubled = torch.cat([batch, batch])\nresult = doubled.sum()\n",
)


class Pair(NamedTuple):
    """Replacements of texts in the script, and the line that then holds more."""

    line: str
    edits: dict[str, str]


KEPT = "kept.append(outputs.detach().clone().repeat(9, 1, 1))"
KEPT_OUTPUTS = {"kept.append(loss.item())": KEPT}
PAIRS = {
    "a kept list": Pair(KEPT, KEPT_OUTPUTS),
    "a kept list of what another line made": Pair(
        "return x + self.down(inner)", {"kept.append(loss.item())": "kept.append(outputs)"}
    ),
    "a larger buffer": Pair(
        'self.register_buffer("mask", torch.zeros(480, 480)[:48, :48])',
        {"torch.zeros(48, 48)": "torch.zeros(480, 480)[:48, :48]"},
    ),
    "an extra copy": Pair(
        "copy = inputs.repeat(8, 1, 1)",
        {"outputs = model": "copy = inputs.repeat(8, 1, 1)\n        outputs = model"},
    ),
    "another attention": Pair(
        "weights = (query @ key.mT + self.mask).softmax(-1)",
        {
            "        return functional.scaled_dot_product_attention(query, key, value, self.mask)":
            "        weights = (query @ key.mT + self.mask).softmax(-1)\n        return weights @ value"
        },
    ),
    "a bigger batch": Pair(
        "inner = functional.gelu(self.up(x))", {"inputs = batch_of(4)": "inputs = batch_of(32)"}
    ),
    "a cast to float64": Pair(
        "loss = outputs.repeat(4, 1, 1).double().square().mean()",
        {"outputs.square()": "outputs.repeat(4, 1, 1).double().square()"},
    ),
    "an added layer": Pair(
        "self.wide = nn.Linear(width, 16 * width)",
        {
            "        self.up = ": "        self.wide = nn.Linear(width, 16 * width)\n        self.up = ",
        },
    ),
    "a cache that is kept": Pair(
        "cached.append(torch.cat([key, value], -1))",
        {
            "class Attention": "cached = []\n\nclass Attention",
            "        return functional.scaled": "        cached.append(torch.cat([key, value], -1))\n"
            "        return functional.scaled",
        },
    ),
    "a hook that stores outputs": Pair(
        "seen.append(output.detach().double())",
        {
            "    optimizer = ": "    seen = []\n"
            "    def store(module, inputs, output):\n"
            "        seen.append(output.detach().double())\n"
            "    for block in model:\n"
            "        block.up.register_forward_hook(store)\n"
            "    optimizer = "
        },
    ),
    "shifted line numbers as well": Pair(
        KEPT,
        KEPT_OUTPUTS | {"import torch\n": "# A licence.\n# More of it.\n\n\nimport torch\n"},
    ),
    "a renamed variable as well": Pair(
        "return torch.randn(size, 48, 64).repeat(1, 4, 1)[:, :48]",
        {
            "inputs": "examples",
            "return torch.randn(size, 48, 64)": "return torch.randn(size, 48, 64).repeat(1, 4, 1)[:, :48]",
        },
    ),
    "another optimizer": Pair("optimizer.step()", {"optim.SGD(": "optim.AdamW("}),
    "gradients that are kept": Pair(
        "loss.backward()", {"zero_grad()": "zero_grad(set_to_none=False)"}
    ),
}  # fmt: skip


def recorded(code: Callable[[], object], path: Path) -> Session:
    """Return the session in the recording of a run that was watched with stacks."""
    file = path / "run.hfmem.jsonl"
    with hfmem_widget.watch(path.name, stacks=True, quiet=True, record=str(file)):
        code()
    opened = hfmem_widget.open(file)
    assert isinstance(opened, Session)
    return opened


def of_script(script: str, folder: Path) -> Session:
    """Return the recording of a script in a folder of its own."""
    folder.mkdir()
    path = folder / "train.py"
    path.write_text(script, "utf-8")
    return recorded(partial(exec, compile(script, path, "exec"), {}), folder)


def of_cells(cells: tuple[str, ...], first: int, folder: Path) -> Session:
    """Return the recording of a notebook's cells, numbered from `first` on."""
    folder.mkdir()
    space: dict[str, object] = {}
    codes = []
    for number, cell in enumerate(cells, first):
        name = f"<ipython-input-{number}-{hash(cell):x}>"
        linecache.cache[name] = len(cell), None, cell.splitlines(keepends=True), name
        codes.append(compile(cell, name, "exec"))

    def run() -> None:
        for code in codes:
            exec(code, space)

    return recorded(run, folder)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Session:
    return of_script(SCRIPT, tmp_path_factory.mktemp("made") / "base")


def largest(comparison: Comparison) -> list[str]:
    before, after = comparison.cells
    assert after.changes is not None
    assert before.usual.live is not None
    assert after.usual.live is not None
    assert after.usual.live.bytes - before.usual.live.bytes == sum(
        change.bytes for change in after.changes
    )
    return [change.source for change in after.changes[:3]]


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_a_growing_line_is_among_the_first_three(pair: Pair, base: Session, tmp_path: Path) -> None:
    """The rows add up to the difference of the peaks, to the byte."""
    script = SCRIPT
    for old, new in pair.edits.items():
        assert old in script
        script = script.replace(old, new)
    head = of_script(script, tmp_path / "head")
    assert pair.line in largest(hfmem_widget.compare(base, head, by="line"))


def test_an_edited_cell_above_does_not_hide_the_line_that_holds_more(tmp_path: Path) -> None:
    """Numbers of cells and lines differ then, and unchanged code does not count as new."""
    before = of_cells(CELLS, 1, tmp_path / "before")
    first = "# Edited.\n" + CELLS[0]
    last = CELLS[2].replace("[batch, batch]", "[batch, batch, batch]")
    after = of_cells((first, CELLS[1], last), 7, tmp_path / "after")

    comparison = hfmem_widget.compare(before, after, by="line")

    assert largest(comparison) == ["doubled = torch.cat([batch, batch, batch])"]
    (change, *_) = comparison.cells[1].changes or ()
    assert (change.name, change.was) == ("cell [9] line 1", "doubled = torch.cat([batch, batch])")


def test_the_same_script_elsewhere_has_no_changes(base: Session, tmp_path: Path) -> None:
    """Another folder and other line numbers do not count; the sentence is about the tensors' peak alone."""
    again = of_script("# Moved.\n" * 5 + SCRIPT, tmp_path / "again")
    for by in ("line", "module"):
        comparison = hfmem_widget.compare(base, again, by=by)
        assert comparison.cells[1].changes == ()
        assert verdicts(comparison)[0].endswith(", alive at the tensors' peak.")


def row(name: str, size: float, source: str = "", function: str = "f") -> Row:
    return Row(name, int(size * MIB), 1, 0.0, "elsewhere", source, function)


@pytest.mark.parametrize(
    ("before", "after", "rows"),
    [
        ([row("a/x.py:1", 1, "y = g()")], [row("a/x.py:9", 1, "y = g()")], []),
        ([row("a/x.py:1", 1, "y = g()")], [row("b/x.py:1", 1, "y = g()")], []),
        ([row("a/x.py:1", 1, "y = g()")], [row("a/x.py:1", 1, "y = g()", "h")], []),
        (
            [row("a/x.py:1", 1, "total = sum(all)")],
            [row("a/x.py:1", 3, "total = sum(alles)")],
            [Change("a/x.py:1", MIB, 3 * MIB, "total = sum(alles)", "f", "total = sum(all)")],
        ),
        (
            [row("a/x.py:1", 1, "y = g()")],
            [row("a/x.py:1", 3, "kept.append(z)")],
            [
                Change("a/x.py:1", 0, 3 * MIB, "kept.append(z)", "f"),
                Change("a/x.py:1", MIB, 0, "y = g()", "f"),
            ],
        ),
        # Each is the other's nearest: what is a little farther is new, however large.
        (
            [row("a/x.py:1", 4, "x = ones(1024, 1024)")],
            [row("a/x.py:1", 8, "x = ones(2048, 1024)"), row("a/x.py:2", 12, "y = ones(3000, 1024)")],
            [
                Change("a/x.py:2", 0, 12 * MIB, "y = ones(3000, 1024)", "f"),
                Change(
                    "a/x.py:1", 4 * MIB, 8 * MIB, "x = ones(2048, 1024)", "f", "x = ones(1024, 1024)"
                ),
            ],
        ),
        # Either of two lines could be the former one, so both count as new.
        (
            [row("a/x.py:1", 1, "y = g()", "p")],
            [row("a/x.py:1", 1, "y = g()", "q"), row("a/x.py:5", 2, "y = g()", "r")],
            [
                Change("a/x.py:5", 0, 2 * MIB, "y = g()", "r"),
                Change("a/x.py:1", MIB, 0, "y = g()", "p"),
                Change("a/x.py:1", 0, MIB, "y = g()", "q"),
            ],
        ),
        # Two lines of the same text are added up.
        (
            [row("a/x.py:1", 1, "y = g()"), row("a/x.py:2", 1, "y = g()")],
            [row("a/x.py:1", 2, "y = g()")],
            [],
        ),
        ([row(BEFORE, 4, function="")], [row(BEFORE, 5, function="")], [Change(BEFORE, 4 * MIB, 5 * MIB)]),
    ],
)  # fmt: skip
def test_a_line_outlasts_edits(before: list[Row], after: list[Row], rows: list[Change]) -> None:
    """Lines match by file, function and text, else by being the only candidates, or almost the same text."""
    assert sorted(changes_of(before, after), key=repr) == sorted(rows, key=repr)


def with_stacks(label: str, *sites: Site, requested: float | None = None) -> Session:
    """Return a session whose peak had memory of some places."""
    session = scripted_run("steps")
    session.label = label
    size = sum(site.bytes for site in sites)
    peak = LivePeak("cuda:0", size, size, sites, requested=size if requested is None else requested)
    peak = replace(peak, span_id=session.spans[0].id)
    session.stacks = Stacks((peak,), StackRecording("allocator"))
    return session


def site(line: str, size: float, function: str = "f", source: str = "y = g()") -> Site:
    return Site(line, "Net · net.py", "aten::mm", "forward", int(size * MIB), 1, source, function)


TRAINER = partial(site, "transformers/trainer.py:2001", function="Trainer._prepare_inputs")
MANY = [site(f"a/x{at}.py:1", 1) for at in range(5)]


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (
            [TRAINER(10)],
            [TRAINER(3492)],
            "head: 3.40 GiB more, allocated in Trainer._prepare_inputs() of trainer.py, alive at the peak.",
        ),
        (
            [TRAINER(20), *MANY],
            [TRAINER(10)],
            (
                "head: 10.0 MiB less, allocated in Trainer._prepare_inputs() of trainer.py, "
                "alive at the peak. In all it is 15.0 MiB less than in base."
            ),
        ),
        (
            [],
            [site("a/run.py:7", 4, "<module>"), *MANY[:2]],
            (
                "head: 4.00 MiB more, allocated in a/run.py:7, alive at the peak. "
                "In all it is 6.00 MiB more than in base."
            ),
        ),
        ([], MANY, "head: 5.00 MiB more than in base, alive at the peak."),
        ([], [site(BEFORE, 9, "", "")], "head: 9.00 MiB more than in base, alive at the peak."),
        (MANY, MANY, "head: within 1 MiB of base, alive at the peak."),
    ],
)
def test_a_line_that_makes_half_is_named(before: list[Site], after: list[Site], text: str) -> None:
    """The line has half of what was added or freed; of a spread or unknown growth no line is named."""
    sessions = with_stacks("base", *before), with_stacks("head", *after)
    comparison = hfmem_widget.compare(*sessions, by="line")
    assert verdicts(comparison)[0] == text
    assert str(comparison).split("\n\n")[1].startswith(text)


def test_lines_are_compared_without_being_asked_for_where_all_have_stacks() -> None:
    """A comparison by time leaves them out, as does one with a cell that has no stacks."""
    sessions = [with_stacks(name, TRAINER(3)) for name in ("base", "head")]
    bare = with_stacks("bare")
    bare.stacks = None

    assert "allocated in" in str(hfmem_widget.compare(*sessions))
    assert "allocated in" not in str(hfmem_widget.compare(*sessions, by="time"))
    assert "stacks" not in str(hfmem_widget.compare(*sessions, bare))


def test_lines_are_a_table_in_text_markdown_and_html() -> None:
    """It has name, function, text, both sizes and the difference of each line, and their sum."""
    sessions = with_stacks("base", TRAINER(3), site("a/b.py:4", 1)), with_stacks("head", TRAINER(9))
    comparison = hfmem_widget.compare(*sessions, by="line")
    line = "transformers/trainer.py:2001"
    rows = [" ".join(line.split()) for line in str(comparison).splitlines()]

    assert f"{line} (Trainer._prepare_inputs) +6.00 MiB · +200 % 3.00 MiB 9.00 MiB" in rows
    assert "a/b.py:4 (f) \u22121.00 MiB · gone 1.00 MiB 0" in rows
    assert "live at the peak +5.00 MiB · +125 % 4.00 MiB 9.00 MiB" in rows
    assert (
        "| transformers/trainer.py:2001<br>Trainer.\\_prepare\\_inputs<br>y = g() | +6.00 MiB · +200 % |"
        in markdown(comparison)
    )
    html = whole_bundle(comparison)["text/html"]
    assert f">{line}</code>" in html
    assert ">allocated in<" in html


@pytest.mark.parametrize("text", CORPUS)
def test_hostile_text_of_a_recording_is_text(text: str, tmp_path: Path) -> None:
    """Neither labels, names and functions nor the text of a line become markup, in a page or in Markdown."""
    sites = Site(f"{text}:7", text, text, "forward", 9 * MIB, 1, text, text), site(text, 1)
    sessions = with_stacks("base", site("a/b.py:4", 1)), with_stacks(text, *sites)
    two = [hfmem_widget.open(one.save(tmp_path / f"{at}.jsonl")) for at, one in enumerate(sessions)]
    output = whole_bundle(hfmem_widget.compare(*two, by="line"))
    Strict(output["text/html"])
    assert "<svg" in output["text/html"]
    assert all(char.isprintable() or char == "\n" for char in output["text/plain"])
    assert "<img" not in markdown(hfmem_widget.compare(*two, by="line"))


def test_each_of_several_is_compared_with_the_baseline() -> None:
    """Each has a sentence and a table of its own; one without stacks has neither."""
    bare = scripted_run("steps")
    bare.label = "bare"
    several = with_stacks("a", TRAINER(3)), with_stacks("b", TRAINER(5)), bare, with_stacks("c")
    comparison = hfmem_widget.compare(*several, by="line", baseline="b")

    named = [each.partition(":")[0] for each in verdicts(comparison) if "alive" in each]
    assert named == ["a", "c"]
    assert str(comparison).count("allocated in  ") == 2
    assert [cell.name for cell in comparison.cells if cell.changes is not None] == ["a", "c"]


def test_changes_by_module_are_those_of_modules() -> None:
    """The same peaks are grouped by module, as in the table of the stacks."""
    sessions = with_stacks("base", *MANY[:2]), with_stacks("head", *MANY)
    comparison = hfmem_widget.compare(*sessions, by="module")
    assert comparison.cells[1].changes == (Change("Net · net.py", 2 * MIB, 5 * MIB),)


def test_without_stacks_one_sentence_says_how_to_record_them() -> None:
    """The other figures are shown as ever."""
    bare = scripted_run("steps")
    bare.label = "base"
    comparison = hfmem_widget.compare(bare, with_stacks("head", *MANY), by="line")

    assert comparison.cells[1].changes is None
    assert "by line with base: no stacks of cuda:0 were recorded. Watch" in comparison.notes[-1]
    assert "head needs as much memory" in verdicts(comparison)[0]


def test_a_note_says_where_a_peak_is_not_the_allocators_own() -> None:
    """It has the words of the view of that peak."""
    sessions = with_stacks("base", *MANY), with_stacks("head", *MANY, requested=7 * MIB)
    (note,) = hfmem_widget.compare(*sessions, by="line").notes
    assert note.startswith("head: Differs from the allocator's own peak by 2.00 MiB")


def test_stacks_of_another_cell_of_the_session_are_not_compared() -> None:
    """A session of all cells has the stacks of the one that recorded last."""
    other = with_stacks("head", *MANY)
    assert other.stacks is not None
    (peak,) = other.stacks.peaks
    other.stacks = replace(other.stacks, peaks=(replace(peak, span_id=99),))
    comparison = hfmem_widget.compare(with_stacks("base"), other, by="line")
    assert comparison.cells[1].changes is None


def test_a_note_names_libraries_of_other_versions() -> None:
    """It has the libraries of both runs on one line, whatever they are compared by."""
    base = replace(scaled("steps", "base"), software={"torch": "2.6.0", "numpy": "2.1", "trl": "1"})
    new = replace(scaled("steps", "head"), software={"torch": "2.7.0", "numpy": "2.1", "peft": "1"})
    assert of_runs({"base": [base], "head": [new]}).notes == (
        "head ran with other versions than base: torch 2.7.0 (2.6.0).",
    )
