"""`hfmem check`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hfmem_widget.cli.output import FINE, NO
from hfmem_widget.view.line import duration_text, running_bundle
from tests.scenes import scripted_run
from tests.unit.cli.conftest import Hfmem, Make


def test_a_check_shows_the_contents_of_a_recording(recorded: Make, hfmem: Hfmem) -> None:
    """Format, versions, label, length, devices, spans, steps, peaks and findings have a line each."""
    done = hfmem("check", recorded("leak"))
    lines = {line[:8].strip(): line[8:].strip() for line in done.out.splitlines()}

    assert done.code == FINE
    assert lines["format"].startswith("version 1, written by python ")
    assert lines["label"] == "fine-tune"
    assert lines["state"] == "done"
    assert lines["length"].startswith("12.4 s: ")
    assert lines["devices"] == "cuda:0 NVIDIA H200, 140.4 GiB"
    assert lines["steps"] == "40"
    assert lines["peaks"] == "cuda:0 6.68 GiB exact"
    assert lines["findings"[:8]].isdigit()
    assert lines["damage"] == "none"


def test_a_run_is_as_long_everywhere_as_its_card_says(tmp_path: Path, hfmem: Hfmem) -> None:
    """Time before and after its only span is not part of it."""
    session = scripted_run("short")
    duration = duration_text(session, session.spans[0])
    session.stopped_at = (session.stopped_at or 0.0) + 5.0
    path = str(session.save(tmp_path / "run.hfmem.jsonl"))

    for command in (["check", path], ["watch", "--once", path]):
        assert duration in hfmem(*command).out
    page = session.report(tmp_path / "run.html", static=True).read_text("utf-8")
    assert f"UTC</time> \N{MIDDLE DOT} {duration}" in page


def test_any_time_can_be_shown(tmp_path: Path, hfmem: Hfmem) -> None:
    """A forged recording may begin in the year 30 billion, and may not have ended yet."""
    path = tmp_path / "x.hfmem.jsonl"
    path.write_text('{"k":"head","format":"hfmem","version":1,"started":1e18,"interval":0.1}\n')

    assert "began     a time outside the calendar" in hfmem("check", path).out
    assert "since a time outside the calendar" in running_bundle("x", 1e18)["text/plain"]


def drop_block(lines: list[bytes]) -> list[bytes]:
    first = next(at for at, line in enumerate(lines) if line.startswith(b'{"k":"rows"'))
    return [*lines[:first], lines[first].replace(b'"n":0', b'"n":1'), *lines[first + 1 :]]


Damage = Callable[[list[bytes]], list[bytes]]


@pytest.mark.parametrize(
    ("damage", "note"),
    [
        (lambda lines: lines[:-1], "no end"),
        (
            lambda lines: [*lines[:2], b"hello\n", *lines[2:]],
            "1 line of the recording could not be",
        ),
        (drop_block, "lacks 1 block"),
    ],
)
def test_damage_is_reported(damage: Damage, note: str, recorded: Make, hfmem: Hfmem) -> None:
    """Damaged and missing data are in a note, and the exit code is 1."""
    path = recorded("training")
    path.write_bytes(b"".join(damage(path.read_bytes().splitlines(keepends=True))))

    code, out, _ = hfmem("check", path)
    assert code == NO
    assert note in out
    assert "damage    see the notes" in out
