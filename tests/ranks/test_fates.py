"""However a rank ends, it ends as it would if nobody followed it, and leaves what it has written."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.ranks.launch import SCRIPTS, followed, free_port, python, sessions


class Fate(NamedTuple):
    """What becomes of a rank: the exit code, and the outcome of each of its streams."""

    name: str
    code: int
    outcomes: tuple[str, ...]


FATES = (
    Fate("raises", 1, ("raised ValueError",)),
    Fate("is interrupted", -signal.SIGINT, ("interrupted",)),
    Fate("is terminated", -signal.SIGTERM, ("",)),
    Fate("leaves at once", 5, ("",)),
    Fate("finds its disk full", 0, ("",)),
    Fate("exits with a code", 3, ("exited with code 3",)),
    Fate("exits with a sentence", 1, ("exited with code 1",)),
    Fate("would have left", 0, ("done",)),
    Fate("becomes another", 0, ("", "done")),
    Fate("forks", 0, ("done",)),
    Fate("joins again", 0, ("done",)),
    Fate("loses its directory", 0, ()),
)


@pytest.mark.parametrize("fate", FATES, ids=lambda fate: fate.name)
def test_a_rank_ends_as_it_would_unfollowed(fate: Fate, tmp_path: Path) -> None:
    """Its exit code is its own; what was written is readable, and says how it ended if it could."""
    run = tmp_path / "run"
    done = python(SCRIPTS / "one.py", fate.name, free_port(), environ=followed(run), code=fate.code)

    assert (done.stdout == "to the end\n") == (fate.code == 0)
    assert tuple(rank.spans[0].outcome for rank in sessions(run)) == fate.outcomes
    cannot_write = fate.name in {"loses its directory", "finds its disk full"}
    assert done.stderr.count("memwatch:") == cannot_write


@pytest.mark.parametrize("directory", ["", "/proc/nonsense", "/dev/null", "x" * 300])
def test_a_run_that_is_nonsense_changes_nothing(directory: str) -> None:
    """At most one line on stderr says why nothing is followed."""
    environ = followed(Path("/nowhere")) | {"HFMEM_RUN": directory}
    done = python(SCRIPTS / "one.py", "ends", free_port(), environ=environ)

    assert done.stdout == "to the end\n"
    assert done.stderr.count("memwatch:") == (directory != "")
