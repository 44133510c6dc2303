"""A launcher whose world changes: 2 ranks, then 4, then a node of two is lost and 2 go on."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import hfmem_widget

run_directory, flag = sys.argv[1], Path(sys.argv[2])
UNTIL = str(Path(__file__).with_name("until.py"))
Ranks = list[subprocess.Popen[bytes]]


def started(world: int, attempt: int) -> Ranks:
    """Start ranks as torchrun does, which counts a world that grows as no attempt."""
    known = {"WORLD_SIZE": str(world), "TORCHELASTIC_RESTART_COUNT": str(attempt)}
    return [
        subprocess.Popen(
            [sys.executable, UNTIL, str(flag)],
            env=os.environ
            | known
            | {"RANK": str(rank), "LOCAL_RANK": str(rank), "TORCHELASTIC_RUN_ID": "x"},
        )
        for rank in range(world)
    ]


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def trains(world: int) -> bool:
    """Return whether all ranks of a world of that size have made steps, for a second or so."""
    run = session.run
    if run is None or run.world != world or len(run) != world:
        return False
    return all(row.step > 10 and not row.flag for row in run.ranks.values())


def is_said(kind: str) -> bool:
    return kind in [finding.kind for finding in session.run.findings]


def ended(ranks: Ranks) -> None:
    for rank in ranks:
        rank.terminate()
    for rank in ranks:
        rank.wait()


def look() -> dict[str, object]:
    run = session.run
    assert run is not None
    return {
        "ranks": sorted(run.ranks),
        "findings": {finding.kind: finding.title for finding in run.findings},
    }


seen = []
with hfmem_widget.watch("elastic", quiet=True, ranks=run_directory) as session:
    ranks = started(2, 0)
    wait(lambda: trains(2))
    seen.append(look())
    ended(ranks)
    ranks = started(4, 0)
    wait(lambda: trains(4) and is_said("rank-restarted"))
    seen.append(look())
    for lost in ranks[2:]:
        lost.kill()
        lost.wait()
    wait(lambda: is_said("rank-gone"))
    seen.append(look())
    ended(ranks[:2])
    ranks = started(2, 1)
    wait(lambda: trains(2))
    flag.touch()
    codes = [rank.wait() for rank in ranks]
seen.append(look())
print(json.dumps({"seen": seen, "codes": codes, "outcome": session.run.overview.spans[0].outcome}))
