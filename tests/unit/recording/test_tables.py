"""Samples, steps and spans for other programs: as files, and by the documentation's programs."""

import csv
import gzip
import re
import signal
import sys
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

import hfmem_widget
from hfmem_widget.errors import OptionError
from hfmem_widget.recording.api import TABLES
from hfmem_widget.recording.lines import FOLD_EVERY
from hfmem_widget.session import Session
from tests.data import ROOT
from tests.scenes import scripted_run
from tests.unit.recording.written import recorded

pd = pytest.importorskip("pandas")


def test_the_table_of_spans_has_a_row_for_each(tmp_path: Path) -> None:
    """A row has edges, outcome, counts, and allocated and reserved of each device."""
    session = scripted_run("leak")
    table = pd.read_csv(session.save(tmp_path / "x.csv", table="spans")).set_index("id")
    step = next(span for span in session.spans if span.kind == "step")
    peak = step.peaks["cuda:0/allocated"]

    assert len(table) == len(session.spans)
    assert table["parent"].iloc[:3].tolist()[1:] == [1.0, 2.0]
    assert table.loc[step.id, "cuda:0/allocated/peak"] == pytest.approx(peak.value)
    assert table.loc[step.id, "cuda:0/allocated/certainty"] == "exact"
    assert table.loc[step.id, "tokens"] == 768
    assert table.loc[step.id, "stop"] == pytest.approx(step.stop)


def test_the_tables_of_steps_and_of_samples_are_those_of_the_session(tmp_path: Path) -> None:
    """The tables have the session's columns; samples are indexed by their time."""
    session = scripted_run("steps")
    samples = pd.read_csv(session.save(tmp_path / "x.csv"))
    steps = pd.read_csv(session.save(tmp_path / "y.csv", table="steps"))

    assert list(samples.columns)[1:] == list(session.to_pandas().columns)
    assert list(steps.columns) == list(session.steps.to_pandas().columns)
    assert (len(samples), len(steps)) == (len(session.timeline), len(session.steps))


def test_no_text_of_the_users_is_a_formula_or_another_row(tmp_path: Path) -> None:
    """A label and the name of a count are on one line, behind a quote where they could be a formula."""
    with hfmem_widget.watch("=1+1", quiet=True) as session:
        for name in ("@SUM(1)", "-1", "+1", "a\r\n=2\u202e"):
            with hfmem_widget.span(name, **{name: 1}):
                pass
    written = session.save(tmp_path / "x.csv", table="spans").read_text("utf-8")
    rows = list(csv.reader(written.splitlines()))

    assert {"'@SUM(1)", "'-1", "'+1", "a =2"} <= set(rows[0])
    assert [row[3] for row in rows[1:]] == ["'=1+1", "'@SUM(1)", "'-1", "'+1", "a =2"]
    assert set(session.spans[-1].counts) == {"a =2"}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("empty", [False, True])
def test_parquet_has_the_same_figures(table: str, empty: bool, tmp_path: Path) -> None:
    """A session without data has a file, too."""
    pytest.importorskip("pyarrow")
    session = Session() if empty else scripted_run("leak")
    text = session.save(tmp_path / "x.csv", table=table)
    same = pd.read_parquet(session.save(tmp_path / "x.parquet", table=table))

    assert len(same) == len(text.read_text("utf-8").splitlines()) - 1


@pytest.mark.parametrize(
    ("name", "table", "text"),
    [
        ("x.csv", "rows", "table must be samples, steps or spans, not 'rows'"),
        ("x.hfmem.jsonl", "steps", "ends in .csv or .parquet for a table"),
        ("x.perfetto.json", "spans", "ends in .csv or .parquet for a table"),
    ],
)
def test_a_table_that_is_none_is_refused(name: str, table: str, text: str, tmp_path: Path) -> None:
    """One sentence says which there are, and what a table is written to."""
    with pytest.raises(OptionError, match=text):
        scripted_run("short").save(tmp_path / name, table=table)


@pytest.mark.parametrize(("ending", "missing"), [("csv", "pandas"), ("parquet", "pyarrow")])
def test_a_missing_library_is_named(
    ending: str, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table needs pandas, Parquet also pyarrow: the sentence says what to install."""
    monkeypatch.setitem(sys.modules, missing, None)

    with pytest.raises(OptionError, match=f"pip install {missing}"):
        scripted_run("short").save(tmp_path / f"x.{ending}")


PAGE = (
    (ROOT / "docs/recording.md")
    .read_text(encoding="utf-8")
    .partition("## Read it with other tools")[2]
)
WORST, SAMPLES, *FOLDS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
COMPRESSED = (
    (".jsonl", ".jsonl.gz"),
    (" open(", " gzip.open("),
    ("import json", "import gzip,json"),
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
    programs = [program for program in FOLDS if f"import {library}" in program]
    printed: list[Any] = []
    namespace: dict[str, Any] = {"print": printed.append}

    for program in (WORST, SAMPLES, *programs):
        replaced = reduce(lambda text, pair: text.replace(*pair), COMPRESSED, program)
        exec(replaced if compressed else program, namespace)  # as a reader would run it

    steps, highest, *folds = printed
    worst = max(session.steps, key=lambda group: group.devices["cuda:0"].peak)
    assert steps.iloc[0]["first"] == worst.first
    assert highest == round(max(session.timeline.high[:, session.index("cuda:0/allocated")]))
    for table in folds:
        rows = table.rows() if library == "polars" else table.fetchall()
        assert len(rows) == session.last_sample.time // FOLD_EVERY + 1
        assert max(high for _, _, high in rows) == highest
