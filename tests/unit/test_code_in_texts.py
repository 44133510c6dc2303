"""Code that stands in a text: cells of notebooks, programs that a test starts, examples of the docs."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from tests.data import ROOT
from tests.data.pages import BLOCKS, PAGES, Block, blocks_of

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
    """Return what a text imports from the package that is not there."""
    found = [
        (module, name)
        for module, names in IMPORT.findall(text)
        for name in NAME.findall(names.strip("()"))
    ]
    return [
        f"{module}.{name}"
        for module, name in found + MODULE.findall(text)
        if not is_there(module, name)
    ]


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

    assert missing(text) == [
        "hfmem_widget.lost",
        "hfmem_widget.gone.one",
        "hfmem_widget.features.nothing",
        "hfmem_widget.features.moved",
    ]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_what_stands_on_a_page_is_python(block: Block) -> None:
    """Each block can be compiled as a cell, magics included."""
    cell = TransformerManager().transform_cell(block.code)

    compile(cell, block.place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_no_block_of_a_page_is_overlooked() -> None:
    """As many as there are fences that begin Python, however these are written."""
    fences = [len(re.findall(r"^\s*`{3,}\s*py", page.read_text(), re.MULTILINE)) for page in PAGES]

    assert sum(fences) == len(BLOCKS)


def test_the_reason_why_a_block_is_not_run_belongs_to_it_alone() -> None:
    """It stands on the line above."""
    text = "<!-- not run: a GPU -->\n```python\none\n```\n\n```python\ntwo\n```\n"
    first, second = blocks_of(ROOT / "README.md", text)

    assert (first.code, first.why_not, first.line) == ("one\n", "a GPU", 3)
    assert (second.code, second.why_not, second.line) == ("two\n", "", 7)
