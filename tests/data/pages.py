"""The Python code on the pages of the documentation, block by block."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.data import ROOT

PAGES = (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<why>[^\n]+) -->\n)?^```python\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A block of code: its page, its first line, its text, and why it is not run, if so."""

    page: Path
    line: int
    code: str
    why_not: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"


def blocks_of(page: Path, text: str) -> list[Block]:
    return [
        Block(page, text[: found.start("code")].count("\n") + 1, found["code"], found["why"] or "")
        for found in BLOCK.finditer(text)
    ]


BLOCKS = [block for page in PAGES for block in blocks_of(page, page.read_text(encoding="utf-8"))]
