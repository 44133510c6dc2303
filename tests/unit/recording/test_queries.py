"""The documentation's programs read a recording without us."""

from __future__ import annotations

import gzip
import re
import signal
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from hfmem_widget.recording.lines import FOLD_EVERY
from tests.data import ROOT
from tests.scenes import scripted_run
from tests.unit.recording.written import recorded

PAGE = (
    (ROOT / "docs/recording.md")
    .read_text(encoding="utf-8")
    .partition("## Read it with other tools")[2]
)
WORST, SAMPLES, *FOLDS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
COMPRESSED = (
    (".jsonl", ".jsonl.gz"),
    (" open(", " gzip.open("),
    ("import json", "import gzip, json"),
)


@pytest.fixture(autouse=True)
def interrupts_as_before() -> Iterator[None]:
    """Put Python's own handler back: polars leaves one in C, which other tests would be interrupted by."""
    yield
    signal.signal(signal.SIGINT, signal.getsignal(signal.SIGINT))


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("library", ["pandas", "polars", "duckdb"])
def test_the_programs_of_the_documentation_run(
    library: str, compressed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worst step, the highest sample, and the extremes of ten seconds are those of the session."""
    pytest.importorskip(library)
    session = scripted_run("steps")
    lines = b"".join(recorded(session))
    name = "fine-tune.hfmem.jsonl"
    (tmp_path / name).write_bytes(lines)
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(lines))
    monkeypatch.chdir(tmp_path)
    own = [program for program in FOLDS if f"import {library}" in program]
    shown: list[Any] = []
    known: dict[str, Any] = {"print": shown.append}

    for program in (WORST, SAMPLES, *own):
        replaced = reduce(lambda text, pair: text.replace(*pair), COMPRESSED, program)
        exec(replaced if compressed else program, known)  # as a reader would run it

    steps, highest, *folds = shown
    peaks = session.timeline.high[:, session.index("cuda:0/allocated")]
    worst = max(session.steps, key=lambda group: group.devices["cuda:0"].peak)
    assert steps.iloc[0]["first"] == worst.first
    assert highest == round(max(peaks))
    for table in folds:
        rows = table.rows() if library == "polars" else table.fetchall()
        assert len(rows) == session.last_sample.time // FOLD_EVERY + 1
        assert max(high for _, _, high in rows) == highest
