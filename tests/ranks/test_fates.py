"""However a rank ends, it ends as it would if nobody followed it, and leaves what it has written."""

import json
import signal
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.ranks.launch import SCRIPTS, followed, free_port, python, sessions


class End(NamedTuple):
    """How a rank has ended."""

    code: int
    out: str
    err: str
    run: Path


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
NONSENSE = ("", "/proc/nonsense", "/dev/null", "x" * 300)


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, End]:
    """Return how each rank has ended, by its fate or its run: all are children of one process."""
    folder = tmp_path_factory.mktemp("fates")
    runs = {fate.name: str(folder / fate.name) for fate in FATES} | {one: one for one in NONSENSE}
    ports: set[str] = set()
    while len(ports) < len(runs):  # they listen at the same time
        ports.add(free_port())
    names = [("ends" if name in NONSENSE else name, run) for name, run in runs.items()]
    fates = [(name, port, run) for (name, run), port in zip(names, ports, strict=True)]
    (folder / "fates.json").write_text(json.dumps(fates))
    python(SCRIPTS / "fates.py", folder, environ=followed(folder))
    ended = json.loads((folder / "ends.json").read_text())
    return {
        name: End(code, out, err, Path(run))
        for (name, run), (code, out, err) in zip(runs.items(), ended, strict=True)
    }


@pytest.mark.parametrize("fate", FATES, ids=lambda fate: fate.name)
def test_a_rank_ends_as_it_would_unfollowed(fate: Fate, ends: dict[str, End]) -> None:
    """Its exit code is its own; what was written is readable, and says how it ended if it could."""
    end = ends[fate.name]

    assert end.code == fate.code
    assert (end.out == "to the end\n") == (fate.code == 0)
    assert tuple(rank.spans[0].outcome for rank in sessions(end.run)) == fate.outcomes
    cannot_write = fate.name in {"loses its directory", "finds its disk full"}
    assert end.err.count("memwatch:") == cannot_write


@pytest.mark.parametrize("directory", NONSENSE)
def test_a_run_that_is_nonsense_changes_nothing(directory: str, ends: dict[str, End]) -> None:
    """At most one line on stderr says why nothing is followed."""
    end = ends[directory]

    assert (end.code, end.out) == (0, "to the end\n")
    assert end.err.count("memwatch:") == (directory != "")
