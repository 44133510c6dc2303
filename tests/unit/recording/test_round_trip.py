"""What is saved is what is opened."""

from __future__ import annotations

import errno
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hfmem_widget
from hfmem_widget.errors import OptionError
from hfmem_widget.recording.api import SO_FAR
from hfmem_widget.session import Session
from tests.scenes import SCRIPTED_RUNS, scripted_run
from tests.scenes.stage import Stage


def as_recorded(value: object) -> Any:
    """Return data with figures as a recording has them: times to 0.1 ms, bytes exactly, NaN as None."""
    if isinstance(value, float | np.floating):
        return None if math.isnan(value) else round(float(value), 4)
    if isinstance(value, np.ndarray):
        # Python's own rounding, as in the file: numpy's is another for large figures.
        known = [None if math.isnan(one) else round(one, 4) for one in value.ravel().tolist()]
        return value.shape, known
    if isinstance(value, Mapping):
        return {key: as_recorded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_recorded(one) for one in value]
    if is_dataclass(value):
        return {field.name: as_recorded(getattr(value, field.name)) for field in fields(value)}
    return value


def contents(session: Session) -> dict[str, Any]:
    """Return all that a session has, by name."""
    timeline, steps = session.timeline, session.steps
    outermost = [span for span in session.spans if span.parent is None]
    known: dict[str, Any] = as_recorded(
        {
            "label": session.label,
            "times": (session.started_at, session.stopped_at, session.broken_off),
            "devices": session.devices,
            "series": session.series,
            "last": session.last_sample.time,
            "timeline": (timeline.bucket, timeline.samples, timeline.gaps),
            "rows": timeline.time,
            "spans": session.spans,
            "phases": [session.phases(span.id) for span in outermost],
            "steps": (steps.count, steps.columns, steps.table),
            "notes": session.notes,
            "findings": session.findings,
            "guides": session.guides,
            "polling": session.polling,
            "contents": session.contents,
        }
    )
    # Samples are whole bytes.
    samples = (timeline.low, timeline.high, session.last_sample.values)
    known["samples"] = [np.nan_to_num(np.rint(values), nan=-1.0).tolist() for values in samples]
    return known


@pytest.mark.parametrize("name", SCRIPTED_RUNS)
def test_what_is_opened_is_what_was_saved(name: str, tmp_path: Path) -> None:
    """Samples, spans, steps, phases, findings and all else come back, whatever the run, also compressed."""
    session = scripted_run(name)
    known = contents(session)

    for ending in (".hfmem.jsonl", ".hfmem.jsonl.gz"):
        opened = contents(hfmem_widget.open(session.save(tmp_path / f"run{ending}")))
        assert [part for part in known if known[part] != opened[part]] == []


def test_on_how_many_steps_phases_were_measured_comes_back(tmp_path: Path) -> None:
    """For the whole run and for each phase, and so what is said of it."""
    session = scripted_run("steps")
    session.polling.steps, session.polling.steps_with_phases = 100, 26
    session.polling.groups, session.polling.share = 37, 0.03125
    opened = hfmem_widget.open(session.save(tmp_path / "run.hfmem.jsonl"))
    root = session.spans[0].id

    assert opened.polling.limited == session.polling.limited
    assert (
        "on 26 of 100 steps, exact peaks for about 2 steps at a time; measuring takes 3.1 %"
        in opened.polling.limited
    )
    assert [phase.steps for phase in opened.phases(root)] == [
        phase.steps for phase in session.phases(root)
    ]
    assert any(phase.steps for phase in opened.phases(root))


def test_a_running_session_is_saved_as_far_as_it_is(tmp_path: Path) -> None:
    """What is opened has ended, says so, and has the spans that were open."""
    stage = Stage("run", gpus=1)
    with stage.span("cell", "run"):
        stage.hold({"cuda:0": 2.0**30}, 1.0)
        stage.sample()
        opened = hfmem_widget.open(stage.session.save(tmp_path / "run.hfmem.jsonl"))

    assert not opened.running
    assert opened.notes == [SO_FAR]
    assert [span.label for span in opened.open_spans] == ["run"]
    assert opened.latest("cuda:0/allocated") == 2.0**30


@pytest.mark.parametrize("has_links", [True, False])
def test_nothing_is_overwritten(
    has_links: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name that is taken is refused, the file stays, and no half of another is left beside it."""
    if not has_links:
        monkeypatch.setattr("os.link", refuse)
    path = tmp_path / "run.hfmem.jsonl"
    scripted_run("short").save(path)
    first = path.read_bytes()

    with pytest.raises(OptionError, match="already exists"):
        scripted_run("training").save(path)

    assert path.read_bytes() == first
    assert list(tmp_path.iterdir()) == [path]


def refuse(*_: object) -> None:
    """Be a drive that has no links."""
    raise PermissionError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("name", ["run.txt", "run", "missing/run.hfmem.jsonl"])
def test_a_path_that_cannot_be_is_refused(name: str, tmp_path: Path) -> None:
    """Another ending and a folder that is not there are said in one sentence."""
    with pytest.raises(OptionError, match=r"name that ends in|cannot be written"):
        scripted_run("short").save(tmp_path / name)


def test_a_table_is_that_of_the_session(tmp_path: Path) -> None:
    """A .csv has a column for each series, and a row for each of the timeline."""
    session = scripted_run("training")

    lines = session.save(tmp_path / "run.csv").read_text(encoding="utf-8").splitlines()

    assert lines[0].split(",")[1:] == list(session.to_pandas().columns)
    assert len(lines) - 1 == len(session.timeline)


def test_versions_are_those_of_where_it_was_recorded(tmp_path: Path) -> None:
    """A library that was imported while the recording was written stands in its last line."""
    session = Session("run", stopped_at=1.0, software={"python": "3.99", "torch": "0.0.99"})
    path = session.save(tmp_path / "run.hfmem.jsonl")
    before = path.read_text(encoding="utf-8").replace(',"torch":"0.0.99"', "", 1)
    path.write_text(before, encoding="utf-8")

    assert hfmem_widget.open(path).software == {"python": "3.99", "torch": "0.0.99"}
