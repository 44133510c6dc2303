"""What is judged, as it travels: bounded, seldom looked for, sent when it changes."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from hfmem_widget.session import Finding, Guide
from hfmem_widget.text import GIB
from hfmem_widget.view.wire import widget
from hfmem_widget.view.wire.protocol import Message, judged
from tests.data.wire import Wire
from tests.scenes import scripted_run
from tests.unit.view.wire.test_protocol import make_recorder

BUDGET = Guide("cuda:0", "budget", "budget", 0.0, math.inf, GIB, GIB)
OVER = Finding("budget", "warn", "over 1.00 GiB", {"time": 1.5, "device": "cuda:0"}, ("less",), 1)


class Run(Wire):
    """A cell that is sampled every 0.1 s."""

    def __init__(self) -> None:
        super().__init__(make_recorder(samples=0))
        self.cell = self.recorder.open_span("cell", "run", self.session.last_sample)

    @property
    def messages(self) -> list[Message]:
        return [one.message for one in self.sent]


def test_there_are_never_more_than_a_message_has_room_for() -> None:
    """However many are found, and however long they are: the gravest and the newest."""
    run = Run()
    run.session.findings += [
        Finding("x", "info" if number % 2 else "critical", f"{number} {'é' * 9000}")
        for number in range(500)
    ]
    run.session.guides += [BUDGET] * 500 + [Guide("cuda:0", "trend", "ü" * 9000, 0, 1, 1, 2)] * 500
    run.session.guides += [Guide("cuda:0", "oom", "o" * 9000, at, at, 1, 1) for at in range(500)]
    told = judged(run.session)
    assert len(told["findings"]) == 8
    assert {one["severity"] for one in told["findings"]} == {"critical"}
    kinds = ["budget"] * 10 + ["trend"] * 10 + ["oom"] * 10
    assert [one["kind"] for one in told["guides"]] == kinds
    assert told["guides"][-1]["start"] == 499
    assert len(json.dumps(told, ensure_ascii=False).encode()) < 13_000


def test_everything_is_strict_json() -> None:
    """A budget has no end, and what could not be told is not sent: a browser parses no NaN."""
    run = Run()
    run.session.findings.append(Finding("x", "warn", "x", {"time": math.nan, "device": 7}))
    run.session.guides += [BUDGET, Guide("cuda:0", "trend", "x", 0.0, 1.0, math.nan, 1.0)]
    told = judged(run.session)
    json.dumps(told, allow_nan=False)
    assert [one["stop"] for one in told["guides"]] == [None]


def test_what_the_data_tell_of_a_cell_comes_once_it_has_ended() -> None:
    """A finished cell's leak is judged from its data, beside what was found as it ran."""
    session = scripted_run("leak")
    assert [one["kind"] for one in judged(session)["findings"]] == ["budget", "leak"]


def test_they_are_sent_when_they_change_and_not_again() -> None:
    """New findings and guides are in one message, and not in those that follow."""
    run = Run()
    run.run(2.0)
    run.session.findings.append(OVER)
    run.session.guides.append(BUDGET)
    run.run(10.0)
    assert sum("findings" in one for one in run.messages if one["kind"] == "rows") == 1
    before = len(run.messages)
    run.session.guides.append(BUDGET)
    run.run(1.0)
    assert max(len(one.get("guides", ())) for one in run.messages[before:]) == 2
    assert not any("findings" in one for one in run.messages[before:] if one["kind"] == "rows")


def test_a_warning_comes_with_the_next_message() -> None:
    """Not a second later: the run may be over by then."""
    run = Run()
    run.run(2.0)
    before = len(run.messages)
    run.session.findings.append(OVER)
    run.run(0.4)
    assert "findings" in run.messages[before]


def test_a_warning_that_is_said_anew_takes_the_place_of_the_old_one() -> None:
    """Such as with the exact peak, once the cell has ended: found in its span, and told once."""
    run = Run()
    run.session.findings.append(OVER)
    run.run(2.0)
    run.recorder.close_span(run.cell.id, run.session.last_sample, {})
    run.run(2.0)
    run.session.findings[0] = replace(OVER, title="over 1.00 GiB, by 0.25")
    run.publisher.finish()
    assert [one["title"] for one in run.messages[-1]["findings"]] == ["over 1.00 GiB, by 0.25."]


def test_every_snapshot_has_them_and_a_page_that_opens_later() -> None:
    """A page that opens late, or asks for all anew, gets all findings and guides."""
    run = Run()
    run.session.findings.append(OVER)
    run.session.guides.append(BUDGET)
    run.run(40.0)
    snapshots = [one for one in run.messages if one["kind"] == "snapshot"]
    assert len(snapshots) > 3
    assert all(one["findings"] and one["guides"] for one in snapshots)
    history = widget._pack_history((run.session, "r", True), None)
    assert history["findings"] == snapshots[0]["findings"]


def test_nothing_is_sent_where_nothing_is_judged() -> None:
    """Not an empty list either: the wire of a healthy run is what it was."""
    run = Run()
    run.run(40.0)
    assert not any("findings" in one or "guides" in one for one in run.messages)
