"""Read many lines that were damaged at random: ``python -m tests.unit.recording.mutate SEED COUNT``.

Prints how many were dropped, and the most memory that the process had, in kB.
"""

import random
import re
import sys
from pathlib import Path

from hfmem_widget.recording.reader import StreamReader
from tests.scenes import scripted_run
from tests.unit.recording.written import recorded, saved

NASTY = (
    *(b"NaN", b"1e999", b"-1", b"[" * 50, b"\x00", b"null", b"{}", b"18446744073709551616"),
    *(b'"', b"[", b"],[", b"1e300", b"-0.5", b"true"),
)
FIGURES = (
    *(b"-1", b"null", b"0", b"7", b"1e300"),
    *(b"1152921504606846975", b"0.5", b"[]", b"1000", b"true"),
)
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
RUNS = ("short", "leak", "two gpus")


def mutated(line: bytes, rng: random.Random) -> bytes:
    """Return a line of which one to three places are others."""
    if rng.random() < 0.5:  # a line as it should be, with another figure somewhere
        number = rng.choice(list(NUMBER.finditer(line)))
        return line[: number.start()] + rng.choice(FIGURES) + line[number.end() :]
    changed = bytearray(line)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(changed) or 1)
        way = rng.random()
        if way < 0.4 and changed:
            changed[at] = rng.randrange(256)
        elif way < 0.7:
            changed[at : at + rng.randrange(8)] = rng.choice(NASTY)
        else:
            del changed[at : at + rng.randrange(20)]
    return bytes(changed)


def main(seed: int, count: int) -> None:
    """Feed `count` lines, a hundred or so to a reader."""
    recordings = [[*saved(run), *recorded(run)] for run in map(scripted_run, RUNS)]
    lines = [line for lines in recordings for line in lines if len(line) < 4000]
    rng, dropped = random.Random(seed), 0
    for number in range(count // 100):
        reader = StreamReader()
        reader.feed(b"".join(rng.choice(recordings)[:2]))
        for _ in range(100):
            reader.feed(mutated(rng.choice(lines), rng) + b"\n")
        session = reader.session()
        assert all(not abs(value) >= 2**60 for value in session.last_sample.values)
        assert session.timeline.width == len(session.series)
        assert len(list(session.steps)) == len(session.steps)
        if number % 10 == 0:
            assert session._repr_mimebundle_()["text/plain"]  # a fault in it is on stderr
        dropped += reader.dropped
    # Not ru_maxrss, which a process that was just forked has of its parent.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    print(dropped, *re.findall(r"VmHWM:\s+(\d+) kB", status))  # noqa: T201


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
