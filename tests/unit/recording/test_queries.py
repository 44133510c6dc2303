"""The documentation's programs read a recording without us."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from hfmem_widget.recording.lines import FOLD_EVERY, Lines
from hfmem_widget.session import Sample
from hfmem_widget.testing import scripted_run
from tests.data import ROOT

PAGE = (ROOT / "docs/recording.md").read_text(encoding="utf-8")
PROGRAMS = [
    program
    for program in re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    if "pd.DataFrame" in program
]


def test_the_programs_of_the_documentation_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The worst step and the extremes of ten seconds, by pandas alone, are those of the session."""
    pytest.importorskip("pandas")
    session = scripted_run("steps")
    rows = session.between(-math.inf, math.inf)
    values = zip(rows.time.tolist(), rows.high.tolist(), strict=True)
    samples = [Sample(time, tuple(row)) for time, row in values]
    lines = Lines(session)
    seconds = [samples[at : at + 10] for at in range(0, len(samples), 10)]
    blocks = [line for second in seconds for line in lines.samples(second, 0.0)]
    path = tmp_path / "fine-tune.hfmem.jsonl"
    path.write_bytes(b"".join([lines.head(), *blocks, *lines.changed()]))
    monkeypatch.chdir(tmp_path)

    exec("".join(PROGRAMS), {})  # what the page says, as a reader would run it

    steps, _, folds = capsys.readouterr().out.partition("from")
    worst = max(session.steps, key=lambda group: group.devices["cuda:0"].peak)
    assert steps.splitlines()[1].split()[1] == str(worst.first)
    assert len(folds.splitlines()) - 1 == samples[-1].time // FOLD_EVERY
