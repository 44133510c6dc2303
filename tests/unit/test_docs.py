"""What the documentation points to is there, what it lists is complete, and code in a text is valid."""

import ast
import json
import re
import subprocess
import sys
from argparse import Action
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from IPython.core.inputtransformer2 import TransformerManager

import hfmem_widget
from hfmem_widget.magics.memwatch import MemwatchMagics
from hfmem_widget.options import OPTIONS
from hfmem_widget.view.screen import Screen
from tests.data import ROOT
from tests.data.forecasts import predict
from tests.data.pages import BLOCKS, Block, blocks_of
from tests.data.pages import PAGES as PAGES_WITH_CODE

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
BENCHES = sorted(ROOT.glob("bench/*.py"))
FROM_WITHIN = re.compile(r"^.*(?:from|import) hfmem_widget\..*", re.MULTILINE)
IMPORTED = re.compile(r"^[ >.]*from hfmem_widget import ([\w, ]+)", re.MULTILINE)
NEED_A_GPU = [path for path in BENCHES if "not_here(" in path.read_text(encoding="utf-8")]

LINK = re.compile(r"\[[^\]\n]*\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")
CITED = re.compile(
    r"`(?:python )?((?:bench|docs|hfmem_widget|js|notebooks|scripts|tests)/[\w./-]+)"
)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and JupyterLab make them."""
    headings = HEADING.findall(page.read_text(encoding="utf-8"))
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in kept}


def links(page: Path) -> list[tuple[str, str]]:
    """Return path and anchor of a page's links within the documentation."""
    return LINK.findall(page.read_text(encoding="utf-8"))


def leads_somewhere(page: Path, path: str, anchor: str) -> bool:
    target = page.parent / path if path else page
    return target.exists() and (not anchor or anchor in anchors(target))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link has its file, and every anchor its heading."""
    assert [link for link in links(page) if not leads_somewhere(page, *link)] == []


def test_a_link_that_leads_nowhere_is_seen() -> None:
    """Links are found, to pages and to headings, and one to a missing page or heading is told apart."""
    index = ROOT / "docs/README.md"

    assert len(links(index)) >= len(PAGES) - 5
    assert any(anchor for page in PAGES for _, anchor in links(page))
    assert leads_somewhere(index, "wire.md", "")
    assert not leads_somewhere(index, "wires.md", "")
    assert not leads_somewhere(index, "wire.md", "no-such-heading")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_cited_are_there(page: Path) -> None:
    """A claim names its bench or its test by a path that exists; what is built need not be."""
    cited = set(CITED.findall(page.read_text(encoding="utf-8")))
    built = {path for path in cited if path.startswith("hfmem_widget/static")}

    assert [path for path in sorted(cited - built) if not (ROOT / path.rstrip(".")).exists()] == []


TAUGHT = sorted([*PAGES, *ROOT.glob("notebooks/*.ipynb")])


@pytest.mark.parametrize("path", TAUGHT, ids=lambda path: path.name)
def test_what_is_taught_imports_public_names_alone(path: Path) -> None:
    """Notebooks and pages import public names alone, since what is within the package may change."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(one["source"]) for one in cells if one["cell_type"] == "code")
    names = [name.strip() for group in IMPORTED.findall(text) for name in group.split(",")]

    assert FROM_WITHIN.findall(text) == []
    assert [name for name in names if name not in hfmem_widget.__all__] == []


def test_the_index_lists_every_page() -> None:
    """docs/README.md lists each page of docs/."""
    docs = ROOT / "docs"
    listed = {path for path, _ in LINK.findall((docs / "README.md").read_text("utf-8"))}
    pages = {page.relative_to(docs).as_posix() for page in docs.glob("**/*.md")}

    assert pages - {"README.md"} <= listed


def test_the_reference_has_every_public_name() -> None:
    """Each public name is listed once, and no other."""
    text = (ROOT / "docs/site/api.rst").read_text(encoding="utf-8")
    listed = re.findall(r"^\.\. auto(?:class|function|exception):: (\w+)$", text, re.MULTILINE)

    assert sorted(listed) == sorted(hfmem_widget.__all__)


def test_the_layout_names_every_folder() -> None:
    """CONTRIBUTING knows each room of the package, and each kind of test."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rooms = [path.parent.name for path in ROOT.glob("hfmem_widget/*/__init__.py")]
    tests = [path.name for path in ROOT.glob("tests/[a-z]*") if path.is_dir()]

    assert [
        room for room in rooms if f"`hfmem_widget/{room}/`" not in text and f"`{room}/`" not in text
    ] == []
    assert [kind for kind in tests if f"`{kind}`" not in text] == []


def row_of(action: Action) -> tuple[str, str]:
    """Return what the table of options says of an argument: how it is written, and what it is in Python."""
    long, *others = sorted(action.option_strings, key=lambda one: not one.startswith("--"))
    flags = [f"{long} {action.metavar}" if action.metavar else long, *others]
    name = f"{action.dest}={action.const}" if isinstance(action.const, bool) else action.dest
    return ", ".join(f"`{one}`" for one in flags), f"`{name}`" if action.dest in OPTIONS else ""


def test_the_table_of_options_has_each_and_no_other() -> None:
    """The table has those of `%%memwatch?`, with what each takes and the argument of `watch()`."""
    text = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| option \| in Python \|.*\n\|.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    rows = [tuple(cell.strip() for cell in line.split("|")[1:3]) for line in table.splitlines()]
    actions = [one for one in MemwatchMagics.memwatch.parser._actions if one.option_strings]

    assert rows == [*map(row_of, actions), ("`--help`, `-h`", "")]


@pytest.mark.parametrize("setting", ["static", "off"])
def test_the_environment_ends_live_views(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`HFMEM_WIDGET=static`, or `off`: a kernel's front end is given only what stays."""
    shell = SimpleNamespace(display_pub=SimpleNamespace(pub_socket=object()))

    assert Screen(shell).live
    monkeypatch.setenv("HFMEM_WIDGET", setting)
    assert not Screen(shell).live


@pytest.mark.full
def test_the_rule_of_8_bit_adam_is_what_was_counted_on_a_gpu() -> None:
    """For bert-large's shape the rule gives the table's bytes, but for what the allocator rounds up."""
    transformers = pytest.importorskip("transformers")
    bert = transformers.BertConfig(
        architectures=["BertForSequenceClassification"],
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
    )
    forecast = predict(bert, device="cuda", optimizer="adamw_bnb_8bit", batch=1, length=16)
    states = next(part.full for part in forecast.parts if part.name == "optimizer")
    table = (ROOT / "docs/measured/anatomy.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| 8-bit Adam \|.*$", table, re.MULTILINE)

    assert states / 2**20 == pytest.approx(float(row.split("|")[5]), rel=0.005)
    page = (ROOT / "docs/measured/memfit.md").read_text(encoding="utf-8")
    assert f"predicted at {states / 2**20:.0f} MiB" in page


@pytest.mark.parametrize("bench", BENCHES, ids=lambda path: path.name)
def test_every_file_in_bench_is_a_bench(bench: Path) -> None:
    """`make bench` runs them all: each measures by itself, and what they share is in a folder of its own."""
    text = bench.read_text(encoding="utf-8")

    assert 'if __name__ == "__main__":' in text
    shared = re.findall(r"^from common(?:\.| import )(\w+)", text, re.MULTILINE)
    assert all((ROOT / "bench" / "common" / f"{name}.py").exists() for name in shared)
    others = "|".join(path.stem for path in BENCHES)
    assert not re.search(rf"^from ({others}) import", text, re.MULTILINE)


IN_TURN = """
import runpy, sys
paths, sys.argv[1:] = sys.argv[1:], []
for path in paths:
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as ended:
        assert not ended.code, path
"""
"""Runs files one after the other: what they import takes seconds, and is imported once."""


@pytest.mark.full
def test_benches_that_need_a_gpu_say_so_in_one_sentence(tmp_path: Path) -> None:
    """Without a GPU each such bench prints one sentence, and fails nothing."""
    environment = {
        "PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "", "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT / "bench"),
    }  # fmt: skip
    command = [sys.executable, "-c", IN_TURN, *map(str, NEED_A_GPU)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert len(NEED_A_GPU) > 1
    assert re.fullmatch(rf"(Not measured: [^\n]+\.\n){{{len(NEED_A_GPU)}}}", done.stdout)


TEXTS = sorted(
    path
    for pattern in (
        "README.md",
        "docs/**/*.md",
        "notebooks/*.ipynb",
        "tests/gpu/*.py",
        "tests/kernel/*.py",
        "tests/browser/*.py",
        "bench/*.py",
        "scripts/*.py",
    )
    for path in ROOT.glob(pattern)
)
IMPORT = re.compile(r"from (hfmem_widget[\w.]*) import (\([^)]*\)|(?:\w+(?: as \w+)?(?:, *)?)+)")
NAME = re.compile(r"(\w+)(?: as \w+)?,?")
MODULE = re.compile(r"^import (hfmem_widget(?:\.\w+)*)\.(\w+)", re.MULTILINE)


def missing(text: str) -> list[str]:
    imports = [(module, names.strip("()")) for module, names in IMPORT.findall(text)]
    pairs = [(module, name) for module, names in imports for name in NAME.findall(names)]
    names = pairs + MODULE.findall(text)
    return [f"{module}.{name}" for module, name in names if not is_there(module, name)]


def is_there(module: str, name: str) -> bool:
    if find_spec(module) is None:
        return False
    return hasattr(import_module(module), name) or find_spec(f"{module}.{name}") is not None


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_text_imports_is_there(path: Path) -> None:
    """No program in a text imports a name that was moved or renamed; on a GPU alone it would be seen."""
    assert missing(path.read_text()) == []


def test_a_name_that_is_gone_is_found() -> None:
    """The check sees names in strings, aliases, lists in brackets, and modules."""
    text = (
        'RUN = """\nfrom hfmem_widget import watch, lost\n"""\n'
        "from hfmem_widget.gone import one as other\n"
        "from hfmem_widget.features import (\n    leaks,\n    nothing,\n)\n"
        "import hfmem_widget.features.moved as moved\n"
    )

    names = ["lost", "gone.one", "features.nothing", "features.moved"]
    assert missing(text) == [f"hfmem_widget.{name}" for name in names]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_what_stands_on_a_page_is_python(block: Block) -> None:
    """Each block can be compiled as a cell, magics included."""
    cell = TransformerManager().transform_cell(block.code)

    compile(cell, block.place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_no_block_of_a_page_is_overlooked() -> None:
    """There are as many blocks as fences that begin Python, however these are written."""
    begins = re.compile(r"^\s*`{3,}\s*py", re.MULTILINE)
    fences = [len(begins.findall(page.read_text())) for page in PAGES_WITH_CODE]

    assert sum(fences) == len(BLOCKS)


def test_the_reason_why_a_block_is_not_run_belongs_to_it_alone() -> None:
    """The reason stands on the line above its block."""
    text = "<!-- not run: a GPU -->\n```python\none\n```\n\n```python\ntwo\n```\n"
    first, second = blocks_of(ROOT / "README.md", text)

    assert (first.code, first.why_not, first.line) == ("one\n", "a GPU", 3)
    assert (second.code, second.why_not, second.line) == ("two\n", "", 7)
