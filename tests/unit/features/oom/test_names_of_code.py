"""What code is called, and whose it is."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from hfmem_widget.features.stacks.call_sites import (
    LONGEST_FILE,
    NO_PYTHON,
    _is_users,
    qualified,
    sites_of,
)
from hfmem_widget.features.stacks.live_at_peak import LiveBlock

NAN = math.nan

CODE = """
if True:
    class A:
        def f(self):
            def g():
                return 1
            return g
try:
    async def h():
        return 2
except ValueError:
    pass
with open("x"):
    def i(): return 3
x = 4
"""


@pytest.mark.parametrize(
    ("line", "name", "told_as"),
    [
        (4, "f", "A.f"),
        (5, "g", "A.f.g"),
        (6, "g", "A.f.g"),
        (7, "f", "A.f"),
        (9, "h", "h"),
        (14, "i", "i"),
        (15, "<module>", "<module>"),
        (15, "x", "x"),
        (6, "B.g", "B.g"),
        (6, "<lambda>", "<lambda>"),
    ],
)
def test_a_function_is_called_by_what_it_lies_in(
    tmp_path: Path, line: int, name: str, told_as: str
) -> None:
    """Wherever it is defined; what has a class already, or no name, stays as it is."""
    path = tmp_path / "code.py"
    path.write_text(CODE, encoding="utf-8")

    assert qualified({"filename": str(path), "line": line, "name": name}) == told_as


@pytest.mark.parametrize(("size", "read"), [(LONGEST_FILE, True), (LONGEST_FILE + 1, False)])
def test_a_very_long_file_is_not_read_for_its_names(
    tmp_path: Path, size: int, *, read: bool
) -> None:
    """It would take longer than the name is worth."""
    path = tmp_path / "long.py"
    text = "class A:\n    def f(self): pass\n#"
    path.write_text(text + "x" * (size - len(text) - 1) + "\n", encoding="utf-8")

    assert qualified({"filename": str(path), "line": 2, "name": "f"}) == ("A.f" if read else "f")


@pytest.mark.parametrize(
    ("filename", "is_users"),
    [
        ("/home/me/train.py", True),
        ("<ipython-input-3-abc>", True),
        ("/tmp/ipykernel_12/34.py", True),
        ("<frozen importlib>", False),
        ("<string>", False),
        ("/x/site-packages/transformers/a.py", False),
        ("/x/dist-packages/torch/nn/a.py", False),
        ("??", False),
        ("", False),
    ],
)
def test_whose_code_a_file_is(filename: str, *, is_users: bool) -> None:
    """The user's, a library's or torch's own."""
    assert _is_users(filename) is is_users


def test_blocks_without_python_are_autograds() -> None:
    """Its threads run none."""
    frames: list[dict[str, Any]] = []
    (site,) = sites_of([LiveBlock(1, 7, frames, seen=True)] * 2, {})

    assert (site.line, site.kind, site.bytes, site.blocks) == (NO_PYTHON, "backward", 14, 2)
