"""What a recording costs, how large it is, and what a cut leaves of it, beside other ways to keep samples.

Ten minutes of eight GPUs at ten samples a second, where some of the figures change from sample to sample.
Every way writes once a second. A cut takes away the end of the file at a random place, as a full disk or a
lost machine does. Parquet is measured where pyarrow is installed, TensorBoard where it is.
"""

import csv
import gzip
import importlib.util
import random
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from common import measure
from common.walks import A_SECOND, TICKS, samples_of

from hfmem_widget.recording.file import members
from hfmem_widget.recording.lines import Lines
from hfmem_widget.recording.reader import StreamReader
from hfmem_widget.session import Sample, Session
from tests.scenes import scripted_run

CUTS = 20

Rows = Sequence[Sample]


def write_lines(session: Session, seconds: Sequence[Rows], path: Path) -> None:
    """Write a recording of ours."""
    lines = Lines(session)
    with path.open("wb", buffering=0) as file:
        file.write(lines.head())
        for rows in seconds:
            file.write(b"".join(lines.samples(rows, 0.0)))


def write_csv(session: Session, seconds: Sequence[Rows], path: Path) -> None:
    """Write a row for each sample."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["time", *(series.key for series in session.series)])
        for rows in seconds:
            writer.writerows([row.time, *map(int, row.values)] for row in rows)
            file.flush()


def write_sqlite(session: Session, seconds: Sequence[Rows], path: Path) -> None:
    """Write a row for each sample, in a transaction for each second, with a write-ahead log."""
    width = len(session.series) + 1
    with sqlite3.connect(path) as database:
        database.execute("pragma journal_mode=wal")
        database.execute("pragma synchronous=normal")
        database.execute(f"create table samples ({','.join(f'c{at}' for at in range(width))})")
        marks = ",".join("?" * width)
        for rows in seconds:
            figures = [(row.time, *map(int, row.values)) for row in rows]
            database.executemany(f"insert into samples values ({marks})", figures)
            database.commit()
    database.close()


def write_events(session: Session, seconds: Sequence[Rows], path: Path) -> None:
    """Write a scalar for each figure that has changed, as a TensorBoard event."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    keys = [series.key for series in session.series]
    before: Sequence[float] = ()
    with path.open("wb") as file:
        writer = RecordWriter(file)
        for step, row in enumerate(row for rows in seconds for row in rows):
            changed = [
                Summary.Value(tag=key, simple_value=value)
                for at, (key, value) in enumerate(zip(keys, row.values, strict=True))
                if not before or before[at] != value
            ]
            event = Event(wall_time=row.time, step=step, summary=Summary(value=changed))
            writer.write(event.SerializeToString())
            before = row.values


def write_parquet(session: Session, seconds: Sequence[Rows], path: Path) -> None:
    """Write a row group for each minute."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ["time", *(series.key for series in session.series)]
    schema = pa.schema([(name, pa.float64()) for name in names])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for first in range(0, len(seconds), 60):
            rows = [(row.time, *row.values) for rows in seconds[first : first + 60] for row in rows]
            writer.write_table(pa.table(list(map(list, zip(*rows, strict=True))), schema=schema))


def left_of_lines(path: Path) -> int:
    """Return how many samples can be read."""
    reader = StreamReader()
    reader.feed(path.read_bytes())
    return reader.session().timeline.samples


def left_of_csv(path: Path) -> int:
    """Return how many samples can be read."""
    return max(0, path.read_bytes().count(b"\n") - 1)


def left_of_sqlite(path: Path) -> int:
    """Return how many samples can be read."""
    try:
        database = sqlite3.connect(path)
        return len(database.execute("select * from samples").fetchall())
    except sqlite3.Error:
        return 0


def left_of_events(path: Path) -> int:
    """Return how many samples can be read."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader

    return sum(1 for _ in RawEventFileLoader(str(path)).Load())


def left_of_parquet(path: Path) -> int:
    """Return how many samples can be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return int(pq.read_table(path).num_rows)
    except (pa.ArrowException, OSError):
        return 0


Way = tuple[Callable[[Session, Sequence[Rows], Path], None], Callable[[Path], int]]


def ways() -> dict[str, Way]:
    """Return what can be measured here."""
    known: dict[str, Way] = {
        "hfmem_widget": (write_lines, left_of_lines),
        "CSV": (write_csv, left_of_csv),
        "SQLite, write-ahead log": (write_sqlite, left_of_sqlite),
    }
    if importlib.util.find_spec("tensorboard"):
        known["TensorBoard events"] = (write_events, left_of_events)
    if importlib.util.find_spec("pyarrow"):
        known["Parquet, zstd"] = (write_parquet, left_of_parquet)
    return known


def left_after_cuts(path: Path, left_of: Callable[[Path], int]) -> list[float]:
    """Return which share of the samples before each of some cuts can be read."""
    chance = random.Random(0)
    size = path.stat().st_size
    shares = []
    for _ in range(CUTS):
        at = chance.uniform(0.1, 0.99)
        cut = path.with_name("cut")
        shutil.copy(path, cut)
        with cut.open("r+b") as file:
            file.truncate(int(at * size))
        shares.append(min(1.0, left_of(cut) / (at * TICKS)))
        cut.unlink()
    return shares


def main() -> None:
    """Measure and print."""
    parser = measure.cli(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    session = scripted_run("eight gpus")
    samples = samples_of(session)
    seconds = [samples[at : at + A_SECOND] for at in range(0, TICKS, A_SECOND)]
    known = ways()
    with tempfile.TemporaryDirectory() as folder:

        def once(name: str) -> float:
            path = Path(folder) / name.partition(",")[0]
            path.unlink(missing_ok=True)
            began = time.process_time()
            known[name][0](session, seconds, path)
            return (time.process_time() - began) / TICKS

        spent = measure.interleave(
            {name: lambda name=name: once(name) for name in known}, arguments.rounds
        )
        rows = []
        for name, (_, left_of) in known.items():
            path = Path(folder) / name.partition(",")[0]
            data = path.read_bytes()
            packed = (
                sum(map(len, members(data.splitlines(keepends=True))))
                if name == "hfmem_widget"
                else len(gzip.compress(data, 6))
            )
            hour = 3600 * A_SECOND / TICKS / 1e6
            shares = measure.estimate(left_after_cuts(path, left_of))
            rows.append(
                [
                    name,
                    measure.estimate(spent[name]).text(1e-6),
                    measure.ratio(spent[name], spent["hfmem_widget"]).text(digits=2),
                    f"{len(data) * hour:.1f}",
                    f"{packed * hour:.1f}",
                    f"{100 * shares.middle:.0f} %",
                ]
            )
    measure.report(
        f"{len(session.series)} series, {A_SECOND} samples a second, {TICKS / A_SECOND / 60:.0f} minutes",
        measure.machine("tensorboard", "pyarrow"),
        ["way", "CPU µs a sample", "x ours", "MB an hour", "compressed", "readable after a cut"],
        rows,
        raw=spent,
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
