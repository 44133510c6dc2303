"""What is saved is what is opened, and a path that cannot be is refused."""

import errno
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hfmem_widget
from hfmem_widget.errors import HFMemError, OptionError
from hfmem_widget.features.report.page import page
from hfmem_widget.recording.api import SO_FAR
from hfmem_widget.recording.limits import MOST_SITES
from hfmem_widget.recording.lines import LONG, Lines
from hfmem_widget.recording.reader import StreamReader
from hfmem_widget.session import Recorder, Sample, Session, Span
from hfmem_widget.text import GIB
from hfmem_widget.view.card import card_bundle
from hfmem_widget.view.line import line
from tests.scenes import SCRIPTED_RUNS, scripted_run
from tests.scenes.stage import Stage
from tests.unit.features.compare.test_by_line import site, with_stacks
from tests.unit.session.test_stacks import stacks


def as_recorded(value: object) -> Any:
    """Return data with figures as a recording has them: times to 0.1 ms, bytes exactly, NaN as None."""
    if isinstance(value, float | np.floating):
        return None if math.isnan(value) else round(float(value), 4)
    if isinstance(value, np.ndarray):
        # Python's own rounding, as in the file: numpy's is another for large figures.
        values = [None if math.isnan(one) else round(one, 4) for one in value.ravel().tolist()]
        return value.shape, values
    if isinstance(value, Mapping):
        return {key: as_recorded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_recorded(one) for one in value]
    if is_dataclass(value):
        return {field.name: as_recorded(getattr(value, field.name)) for field in fields(value)}
    return value


def contents(session: Session) -> dict[str, Any]:
    timeline, steps = session.timeline, session.steps
    outermost = [span for span in session.spans if span.parent is None]
    data: dict[str, Any] = as_recorded(
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
    data["samples"] = [np.nan_to_num(np.rint(values), nan=-1.0).tolist() for values in samples]
    return data


def test_a_recording_of_before_keeps_the_names_of_its_series(tmp_path: Path) -> None:
    """The host's figure was malloc's heap in use once, which its card and its columns still say."""
    with hfmem_widget.watch(quiet=True) as session:
        pass
    file = session.save(tmp_path / "new.hfmem.jsonl")
    text = file.read_text().replace("private memory", "heap in use")
    old = tmp_path / "old.hfmem.jsonl"
    old.write_text(text)
    opened = hfmem_widget.open(old)

    assert opened.series[opened.index("cpu/allocated") or 0].label == "heap in use"
    assert "heap in use" in card_bundle(opened, opened.spans[0], with_chart=False)["text/plain"]
    allocated = session.latest("cpu/allocated")
    assert opened.latest("cpu/allocated") == pytest.approx(allocated, rel=1e-6)


@pytest.mark.parametrize("name", SCRIPTED_RUNS)
def test_an_opened_session_equals_the_saved_one(name: str, tmp_path: Path) -> None:
    """Samples, spans, steps, phases, findings and all else, for every run, also compressed."""
    session = scripted_run(name)
    expected = contents(session)

    paths = (tmp_path / f"run{ending}" for ending in (".hfmem.jsonl", ".hfmem.jsonl.gz"))
    whole, compressed = (hfmem_widget.open(session.save(path)) for path in paths)
    opened = contents(whole)
    assert [part for part in expected if expected[part] != opened[part]] == []
    assert compressed == whole


def test_live_memory_at_the_peak_comes_back(tmp_path: Path) -> None:
    """Each place of each device comes back; the smallest of very many are one, so that the sum stays."""
    sites = [site(f"a/x.py:{at}", 1 + at % 7) for at in range(3 * MOST_SITES)]
    few, many = with_stacks("few", *sites[:9]), with_stacks("many", *sites)
    assert few.stacks is not None
    (peak,) = few.stacks.peaks
    few.stacks = replace(few.stacks, peaks=(peak, replace(peak, device="cpu", requested=math.nan)))

    opened = hfmem_widget.open(few.save(tmp_path / "few.hfmem.jsonl")).stacks
    assert as_recorded(opened.peaks) == as_recorded(few.stacks.peaks)
    text = opened._repr_mimebundle_()["text/plain"]
    assert "0 events recorded." in text
    assert "reading the record" not in text
    (folded,) = hfmem_widget.open(many.save(tmp_path / "many.hfmem.jsonl")).stacks.peaks
    assert sum(each.bytes for each in folded.sites) == folded.bytes
    assert folded.sites[-1].line == "everything else"
    assert len(folded.sites) == MOST_SITES


def test_on_how_many_steps_phases_were_measured_comes_back(tmp_path: Path) -> None:
    """The numbers for the run and for each phase come back, and the sentence about them."""
    session = scripted_run("steps")
    session.polling.steps, session.polling.steps_with_phases = 100, 26
    session.polling.groups, session.polling.share = 37, 0.03125
    opened = hfmem_widget.open(session.save(tmp_path / "run.hfmem.jsonl"))
    root = session.spans[0].id

    assert opened.polling.limited == session.polling.limited
    sentence = "on 26 of 100 steps, one peak for about 2 steps at a time; measuring takes 3.1 %"
    assert sentence in opened.polling.limited
    steps = [phase.steps for phase in session.phases(root)]
    assert [phase.steps for phase in opened.phases(root)] == steps
    assert any(phase.steps for phase in opened.phases(root))


@pytest.mark.parametrize("has_links", [True, False])
def test_files_are_kept(has_links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_an_impossible_path_is_refused(name: str, tmp_path: Path) -> None:
    """Another ending, or a missing folder, is one sentence."""
    with pytest.raises(OptionError, match=r"name that ends in|cannot be written"):
        scripted_run("short").save(tmp_path / name)


def test_versions_are_those_of_where_it_was_recorded(tmp_path: Path) -> None:
    """A library that was imported during the recording is in its last line."""
    session = Session("run", stopped_at=1.0, software={"python": "3.99", "torch": "0.0.99"})
    path = session.save(tmp_path / "run.hfmem.jsonl")
    before = path.read_text(encoding="utf-8").replace(',"torch":"0.0.99"', "", 1)
    path.write_text(before, encoding="utf-8")

    assert hfmem_widget.open(path).software == {"python": "3.99", "torch": "0.0.99"}


def test_a_step_that_is_open_for_long_is_written_and_so_is_its_end() -> None:
    """A reader sees in which step a process hangs, and no longer once it has gone on."""
    recorder = Recorder("run", started_at=0.0)
    lines, reader = Lines(recorder.session), StreamReader()
    reader.feed(lines.head())

    def spans() -> tuple[Span, ...]:
        reader.feed(b"".join([*lines.samples([], 0.0), *lines.changed()]))
        return reader.session().spans

    step = recorder.open_span("step", "step 1", recorder.append(Sample(1.0, ())))
    recorder.append(Sample(0.9 + LONG, ()))
    assert spans() == ()

    recorder.append(Sample(1.0 + LONG, ()))
    assert [(span.kind, span.stop) for span in spans()] == [("step", None)]

    recorder.close_span(step.id, recorder.append(Sample(9.0, ())), {})
    assert [(span.kind, span.stop) for span in spans()] == [("step", 9.0)]

    quick = recorder.open_span("step", "step 2", recorder.append(Sample(9.1, ())))
    recorder.close_span(quick.id, recorder.append(Sample(9.2, ())), {})
    assert len(spans()) == 1


def saved_within_a_cell(path: Path, *, killed: bool = False) -> Session:
    """Return what is read of a cell that is not over, and had more on the GPU a moment before."""
    stage = Stage("fit", gpus=1)
    with stage.span("cell", "before"):
        stage.hold({"cpu": GIB}, 0.5)
    with stage.span("cell", "fit"):
        stage.hold({"cuda:0": 3 * GIB}, 1.0)
        stage.hold({"cuda:0": GIB}, 1.0)
        stage.session.save(path)
    if killed:
        path.write_bytes(path.read_bytes().rpartition(b'{"k":"end"')[0])
    session: Session = hfmem_widget.open(path)
    assert not session.running
    return session


@pytest.mark.parametrize(
    ("killed", "note"), [(False, "not ended when it was saved"), (True, "not watched to its end")]
)
def test_an_open_cell_does_not_run_any_more(tmp_path: Path, *, killed: bool, note: str) -> None:
    """Note, line, card and report say that the cell was saved while it ran."""
    session = saved_within_a_cell(tmp_path / "fit.hfmem.jsonl", killed=killed)
    cell = session.spans[1]

    assert SO_FAR in session.notes
    assert session.open_spans == (cell,)
    for text in (line(session, cell), *card_bundle(session, cell, with_chart=False).values()):
        assert note in text
        assert "running" not in text.replace("saved while it was running", "")
    assert note in page(session, static=True)


def test_the_peak_of_an_open_cell_is_that_of_its_samples(tmp_path: Path) -> None:
    """No recorder has followed it here: the highest is found among what was read."""
    session = saved_within_a_cell(tmp_path / "fit.hfmem.jsonl")
    cell = session.spans[1]

    assert session.highest_in(cell.id, "cuda:0/allocated") >= 2.8 * GIB
    assert "cuda:0" in line(session, cell)
    assert math.isnan(session.highest_in(cell.id, "cuda:0/none"))


NAMES = ("run.hfmem.jsonl", "samples.csv", "page.html", "peak.pickle")


class IsBytes(os.PathLike[bytes]):
    def __fspath__(self) -> bytes:
        return b"page.html"


BAD: tuple[Any, ...] = (
    7, True, None, [], b"page.html", IsBytes(), "a\0b",
    *(start + name for name in NAMES for start in ("~nobody-of-this-name/", "none/", "x" * 5000, "a\0b")),
)  # fmt: skip


def watched(path: Any) -> None:
    with hfmem_widget.watch("x", quiet=True, record=path):
        pass


DOORS: dict[str, Callable[[Any], object]] = {
    "session.save": lambda path: scripted_run().save(path),
    "session.report": lambda path: scripted_run().report(path),
    "history.save": lambda path: hfmem_widget.history().save(path),
    "stacks.save": lambda path: stacks().save(path),
    "open": hfmem_widget.open,
    "record": watched,
    "fit": hfmem_widget.fit,
}


@pytest.mark.parametrize("door", DOORS)
def test_a_bad_path_is_an_error(door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One short sentence refuses an invalid name, nobody's home, no path at all, and a missing folder."""
    monkeypatch.chdir(tmp_path)
    for path in BAD:
        with pytest.raises(HFMemError) as refused:
            DOORS[door](path)
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) < 400

    assert [*tmp_path.iterdir()] == []
