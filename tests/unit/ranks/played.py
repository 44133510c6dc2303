"""Simulated runs, fed to a collector as a reader of their files would."""

import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hfmem_widget.ranks.collector import Collector
from hfmem_widget.session import Finding
from hfmem_widget.session.rank_records import Ranks, RankStrip
from tests.fakes.ranks import Script, SimulatedRun

Pieces = list[tuple[str, bytes]]


def play(
    run: SimulatedRun,
    seconds: float,
    collector: Collector | None = None,
    arranged: Callable[[Pieces], Iterable[tuple[str, bytes]]] = iter,
) -> Collector:
    """Feed what some seconds of a run bring, pace by pace, and let the collector look after each."""
    collector = collector or Collector()
    stop = run.now + seconds
    while run.now < stop - 1e-9:
        for stream, data in arranged(list(run.advance(min(run.script.pace, stop - run.now)))):
            collector.feed(stream, data)
        collector.tick(run.began + run.now)
    return collector


def finish(run: SimulatedRun, collector: Collector) -> None:
    """End the run, and let the collector read its last lines."""
    for stream, data in run.finish():
        collector.feed(stream, data)
    collector.tick(run.began + run.now + 1)


def found(collector: Collector, kind: str) -> list[Finding]:
    return [finding for finding in collector.session.findings if finding.kind == kind]


def kinds(collector: Collector) -> Sequence[str]:
    return [finding.kind for finding in collector.session.findings]


def ranks_of(collector: Collector) -> Ranks:
    assert collector.session.ranks is not None
    return collector.session.ranks


def cells_of(strip: RankStrip) -> npt.NDArray[np.uint8]:
    """Return the cells of a strip: a row for each instant, a column for each group of ranks."""
    return np.frombuffer(strip.cells, dtype=np.uint8).reshape(len(strip.at), len(strip.first))


def played(seconds: float, **script: Any) -> tuple[SimulatedRun, Collector]:
    """Return a run by a script, and the collector that has read its first seconds."""
    run = SimulatedRun(Script(**script))
    return run, play(run, seconds)


def garbage(count: int, seed: int = 0) -> bytes:
    """Return lines that no rank would write: damaged, hostile, of other kinds, out of range."""
    rng = random.Random(seed)
    bad_lines: list[bytes] = [
        b"", b"null", b"[]", b"{}", b'"k"', b'{"k":1}', b'{"k":"rows"}', b'{"k":"head"}', b"\x00" * 40,
        b"[" * 5000, b'{"k":"rows","n":-1,"w":1e999,"t":[],"s":[],"v":[]}',
        b'{"k":"rows","n":99999999999999999999,"w":0,"t":[NaN],"s":[0],"v":[[1]]}',
        b'{"k":"fold","n":0,"t":[0,1152921504606846975],"samples":1,"low":[0],"high":[0],"last":[0]}',
        b'{"k":"head","format":"hfmem","version":1,"started":0,"rank":1152921504606846975}',
        b'{"k":"head","format":"hfmem","version":1,"started":-1,"rank":true,"world":-8}',
        b'{"k":"head","format":"hfmem","version":999,"started":0}',
        b'{"k":"series","first":0,"devices":[],"series":["cuda:0/allocated"],"labels":["x"]}',
        b'{"k":"steps","count":1,"devices":["cuda:0"],"rows":[[0,1,1]]}',
        b'{"k":"span","id":1,"parent":null,"kind":"bomb","label":"","start":0,"stop":null}',
        (b'{"k":"finding","i":0,"kind":"oom","severity":"critical","title":"\xe2\x80\xae<img onerror=1>",'
        b'"evidence":{"a":[[[[[[[[[[1]]]]]]]]]]},"advice":[],"span":null}'),
        b'{"k":"end","time":0,"stopped":1e300}',
    ]  # fmt: skip
    lines = []
    for _ in range(count):
        line = bytearray(rng.choice(bad_lines))
        for _ in range(rng.randrange(3)):
            if line:
                line[rng.randrange(len(line))] = rng.randrange(256)
        lines.append(bytes(line).replace(b"\n", b" "))
    return b"\n".join(lines) + b"\n"


def arranged_by(seed: int, pieces: Pieces) -> Pieces:
    """Return the same bytes in another order of streams, cut at other places."""
    rng = random.Random(seed)
    queues: dict[str, list[bytes]] = {}
    for stream, data in pieces:
        cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(4)))
        edges = [0, *cuts, len(data)]
        parts = [data[start:stop] for start, stop in itertools.pairwise(edges)]
        queues.setdefault(stream, []).extend(parts)
    arranged = []
    while queues:
        stream = rng.choice(list(queues))
        arranged.append((stream, queues[stream].pop(0)))
        if not queues[stream]:
            del queues[stream]
    return arranged
