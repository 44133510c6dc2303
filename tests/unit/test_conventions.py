"""What every test here has."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]


def without_docstring(file: Path, source: str) -> Iterator[str]:
    """Yield where a test does not say its fact."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name.startswith("test_")
            and not (ast.get_docstring(node) or "").strip()
        ):
            yield f"{file}:{node.lineno} {node.name}"


def test_every_test_says_its_fact() -> None:
    """A test without a docstring is named by its file and line."""
    silent = [
        place
        for file in sorted(TESTS.rglob("test_*.py"))
        for place in without_docstring(file.relative_to(TESTS.parent), file.read_text("utf-8"))
    ]

    assert not silent, "\n".join(["tests without a docstring:", *silent])


def test_a_test_without_a_docstring_is_found() -> None:
    """In a class, behind a decorator or with an empty docstring, a silent test is named by its line."""
    source = """
def test_one(): "It says so."

class Cases:
    @mark
    def test_two(self): ...

async def test_three(): ""

def helper(): ...
"""
    found = list(without_docstring(Path("test_x.py"), source))

    assert sorted(found) == ["test_x.py:6 test_two", "test_x.py:8 test_three"]
