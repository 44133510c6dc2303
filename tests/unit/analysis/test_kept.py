"""What names keep, as a part of the memory that is not attributed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from hfmem_widget.analysis.anatomy import anatomy
from hfmem_widget.analysis.kept import kept_at, kept_since
from hfmem_widget.session import Finding, Session
from hfmem_widget.text import MIB
from tests.scenes.stage import Stage

KEY = "cuda:0"


def cell_of(*unattributed: float) -> Session:
    """Return a cell with 1 MiB of weights, and so many MiB that are not attributed, a second each."""
    stage = Stage("kept", gpus=1, interval=1.0)
    with stage.span("cell", "cell"):
        for size in unattributed:
            parts = {"weights": MIB, "unattributed": size * MIB}
            stage.hold({KEY: (size + 1) * MIB}, 1.0, parts)
    return stage.finish()


def found(session: Session, grown: float) -> Session:
    """Return the session with what a search at its end found."""
    kept = kept_since(session, session.spans[0], KEY, grown * MIB)
    evidence = {"device": KEY, "holder": "losses", "kept": kept}
    session.findings.append(Finding("leak", "warn", "Held", evidence, span_id=session.spans[0].id))
    return session


def most_kept(session: Session, times: Sequence[float]) -> list[float]:
    return [size / MIB for size in kept_at(session, KEY, times)[0].tolist()]


def test_it_counts_from_when_it_stayed() -> None:
    """What was freed before the search came and went without it."""
    session = found(cell_of(0, 10, 21, 20, 31, 30), 30)
    kept = most_kept(session, session.timeline.time.tolist())

    assert kept == sorted(kept)
    assert {0.0, 10.0, 20.0, 30.0} <= set(kept)


def test_before_much_was_freed_nobody_knows_whose_it_was() -> None:
    """As much as the name holds was there, and may have been another's."""
    session = found(cell_of(0, 90, 90, 5, 20, 30), 30)
    allocated = session.timeline.low[:, session.index(f"{KEY}/allocated")]
    until = session.timeline.time[allocated > 60 * MIB]

    assert most_kept(session, until.tolist()) == [0.0] * len(until)
    assert anatomy(session).bytes("kept") == 30 * MIB


def test_it_is_named_and_taken_from_what_is_not_attributed() -> None:
    """The parts still add up."""
    now = anatomy(found(cell_of(0, 10, 40), 25))
    (kept,) = (part for part in now.parts if part.name == "kept")

    assert (kept.label, kept.bytes) == ("kept by losses", 25 * MIB)
    assert now.bytes("unattributed") == 15 * MIB


def test_a_name_that_has_more_than_is_there_says_nothing() -> None:
    """A part of it is counted elsewhere."""
    session = cell_of(0, 10, 20)
    assert kept_since(session, session.spans[0], KEY, 25 * MIB) == []


@pytest.mark.parametrize(
    "kept", [None, 3, "text", [1, 2], [[1]], [[1, "a"]], {"a": 1}, [[1, 2, 3]]]
)
def test_what_a_file_has_instead_is_nothing(kept: Any) -> None:
    """A recording may come from anybody."""
    session = cell_of(0, 10)
    session.findings.append(Finding("leak", "warn", "Held", {"device": KEY, "kept": kept}))

    assert math.isnan(anatomy(session).bytes("kept"))
