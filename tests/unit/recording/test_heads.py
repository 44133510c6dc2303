"""The first line of a recording: of a session by itself, or of one rank of a run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hfmem_widget.recording.check import Head, parse
from hfmem_widget.recording.lines import Lines
from hfmem_widget.session import Rank
from tests.scenes import scripted_run

RANK = Rank(417, 1, 1024, 2, "node0052", 4711, "Slurm")
RUN = "0123456789abcdef" * 2


def parsed(**changes: Any) -> Head:
    """Return the head of a rank with some of its fields changed."""
    fields = json.loads(Lines(scripted_run("short"), RANK).head(RUN)) | changes
    head = parse(json.dumps(fields).encode())
    assert isinstance(head, Head)
    return head


def test_a_recording_by_itself_has_no_rank() -> None:
    """It has an id of its own."""
    line = Lines(scripted_run("short")).head()

    assert list(json.loads(line)) == [
        *("k", "format", "version", "run", "part", "started", "label", "interval", "software")
    ]
    head = parse(line)
    assert isinstance(head, Head)
    assert head.rank is None
    assert len(head.run) == 32


def test_a_head_of_a_rank_comes_back() -> None:
    """Which rank of which run, in the order of the format's description."""
    line = Lines(scripted_run("short"), RANK).head(RUN)

    assert list(json.loads(line)) == [
        *("k", "format", "version", "run", "part", "started", "rank", "local", "world"),
        *("attempt", "host", "pid", "label", "interval", "engine", "software"),
    ]
    assert parsed().rank == RANK
    assert parsed().run == RUN


@pytest.mark.parametrize(
    "changes",
    [
        {"rank": -1}, {"rank": 1024}, {"rank": "7"}, {"rank": 1.5}, {"rank": True},
        {"world": 0}, {"world": 1 << 21}, {"rank": 1 << 20, "world": 1 << 21}, {"local": -1},
        {"attempt": 1 << 20}, {"attempt": None}, {"pid": -4}, {"pid": 1 << 60}, {"host": 5},
        {"engine": ["x"]}, {"run": 5},
    ],
    ids=str,
)  # fmt: skip
def test_a_rank_that_cannot_be_is_none(changes: dict[str, Any]) -> None:
    """The line is refused, and with it the stream."""
    with pytest.raises(ValueError, match=r"."):
        parsed(**changes)


def test_texts_of_a_rank_are_made_plain() -> None:
    """And shortened: a host is shown to people."""
    head = parsed(host="a\u202e\x00" + "b" * 500, engine="x" * 500)

    assert head.rank is not None
    assert len(head.rank.host) == 64
    assert head.rank.host.startswith("ab")
    assert len(head.rank.engine) == 40
