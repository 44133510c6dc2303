"""`hfmem export` and `hfmem report`."""

import json
from pathlib import Path

import pytest

from hfmem_widget.cli.main import main
from hfmem_widget.cli.output import FINE, WRONG
from hfmem_widget.session import Session
from tests.unit.cli.conftest import Hfmem, Make


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder of the test's own, with pandas."""
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (["--to", "csv"], ("run.samples.csv", "time,cuda:0/allocated")),
        (["--to", "csv", "--table", "steps"], ("run.steps.csv", "parent,first,last")),
        (["--to", "csv", "--table", "spans"], ("run.spans.csv", "id,parent,kind,label")),
        (["--to", "perfetto"], ("run.perfetto.json", '{"displayTimeUnit"')),
        (["--to", "perfetto", "-o", "x.trace.json"], ("x.trace.json", '{"displayTimeUnit"')),
        (["--to", "csv", "-o", "x.csv"], ("x.csv", "time,")),
    ],
)
def test_an_export_is_written_here_and_named(
    words: list[str], written: tuple[str, str], recorded: Make, here: Path, hfmem: Hfmem
) -> None:
    """The file has the recording's name unless -o is given, and its path is printed."""
    name, begins = written

    assert hfmem("export", recorded("steps"), *words) == (FINE, f"{name}\n", "")
    assert (here / name).read_text("utf-8").startswith(begins)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "csv", "-o", "x.txt"], "ends in .csv, not 'x.txt'"),
        (["--to", "perfetto", "-o", "x.json"], "ends in .perfetto.json or .trace.json"),
        (["--to", "perfetto", "--table", "steps"], "--table is for csv and parquet"),
        (["--to", "csv", "--resolution", "2"], "--resolution is for perfetto"),
        (["--to", "perfetto", "--resolution", "0"], "resolution must be"),
        (["--to", "perfetto", "--resolution", "nan"], "resolution must be"),
        (["--to", "csv", "-o", "taken.csv"], "already exists"),
        (["--to", "csv", "-o", "nowhere/x.csv"], "cannot be written"),
    ],
)
def test_an_impossible_export_is_one_line(
    words: list[str], message: str, recorded: Make, here: Path, hfmem: Hfmem
) -> None:
    """It says what is allowed; nothing is written or overwritten."""
    (here / "taken.csv").write_text("mine")
    path = recorded()

    code, _, err = hfmem("export", path, *words)

    assert (code, err.count("\n")) == (WRONG, 1)
    assert message in err
    assert {each.name for each in here.iterdir()} == {"taken.csv", path.name}
    assert (here / "taken.csv").read_text() == "mine"


def test_an_export_has_every_sample(here: Path) -> None:
    """A recording of more than an hour is not folded for a table."""
    path = here / "long.hfmem.jsonl"
    head = '{"k":"head","format":"hfmem","version":1,"started":5.0,"label":"x","interval":1.0}\n'
    columns = (
        '{"k":"series","first":0,"devices":[{"key":"cpu","name":"c","total":9}],'
        '"series":["cpu/allocated"],"labels":["heap in use"]}\n'
    )
    blocks, seconds = [], 100
    for block in range(60):
        times = [float(seconds * block + second) for second in range(seconds)]
        rows = {"k": "rows", "n": block, "w": 5.0 + times[-1], "t": times, "s": [0], "v": [times]}
        fold = {"k": "fold", "n": block, "t": [times[0], times[-1]], "samples": seconds}
        fold |= {"low": [times[0]], "high": [times[-1]], "last": [times[-1]]}
        blocks += [json.dumps(rows), json.dumps(fold)]
    path.write_text(head + columns + "\n".join(blocks) + "\n")

    assert main(["export", str(path), "--to", "csv"]) == FINE
    assert len((here / "long.samples.csv").read_text().splitlines()) == 1 + 60 * seconds


@pytest.mark.parametrize(
    ("words", "name", "is_static"),
    [
        ([], "run.html", False),
        (["--static"], "run.html", True),
        (["-o", "page.html"], "page.html", False),
    ],
)
def test_a_report_is_that_of_the_session(
    words: list[str], name: str, is_static: bool, recorded: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`hfmem report` passes path and kind to `Session.report`."""
    arguments: list[object] = []

    def report(session: Session, path: str, *, static: bool = False) -> Path:
        arguments.extend((session.label, path, static))
        return Path(path)

    monkeypatch.setattr(Session, "report", report)

    assert main(["report", str(recorded("leak")), *words]) == FINE
    assert arguments == ["fine-tune", name, is_static]
