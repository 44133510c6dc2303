"""``hfmem explain``, ``report`` and ``export``: a recording as text, or as another file."""

import json
from argparse import Namespace
from importlib.resources import files
from pathlib import Path

from hfmem_widget.cli.output import FINE, say
from hfmem_widget.errors import OptionError
from hfmem_widget.ranks.run import open as open_path
from hfmem_widget.ranks.run import overview_of
from hfmem_widget.recording.file import checked_path, file_error, read, write_new
from hfmem_widget.recording.limits import ENDINGS, SUFFIX
from hfmem_widget.recording.trace import TRACES
from hfmem_widget.session import Session
from hfmem_widget.session.stacks import Snapshot
from hfmem_widget.text import plain
from hfmem_widget.view.explained import text_of

_WRITTEN = {"csv": (".csv",), "parquet": (".parquet",), "perfetto": TRACES}


Found = Session | Snapshot


def report(arguments: Namespace) -> int:
    """Write the page of a run."""
    run = checked_path(arguments.RUN)
    path = arguments.output or f"{stem(run)}.html"
    say(plain(what_is_in(run).report(path, static=arguments.static), 4096))
    return FINE


def explain(arguments: Namespace) -> int:
    """Say where the memory of a run went."""
    explained = what_is_in(checked_path(arguments.RUN)).explain()
    say(json.dumps(explained.to_dict()) if arguments.json else text_of(explained))
    return FINE


def skill(arguments: Namespace) -> int:
    """Print the instructions for coding agents, or write them to a folder where agents look for them."""
    text = files("hfmem_widget").joinpath("skill", "SKILL.md").read_text("utf-8")
    if arguments.install is None:
        say(text, end="")
        return FINE
    place = Path(arguments.install).expanduser() / "hfmem" / "SKILL.md"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise file_error("written", place, error) from None
    write_new(place, [text.encode()])
    say(plain(place, 4096))
    return FINE


def export(arguments: Namespace) -> int:
    """Write a table or a trace of a run."""
    run, to = checked_path(arguments.RUN), arguments.to
    endings = _WRITTEN[to]
    if to == "perfetto" and arguments.table:
        raise OptionError(
            "--table is for csv and parquet; a trace for Perfetto has samples, steps and spans"
        )
    if to != "perfetto" and arguments.resolution is not None:
        raise OptionError("--resolution is for perfetto; a table has every sample of the recording")
    table = arguments.table or "samples"
    name = stem(run) if to == "perfetto" else f"{stem(run)}.{table}"
    path = Path(arguments.output or f"{name}{endings[0]}")
    if not path.name.endswith(endings):
        raise OptionError(
            f"--to {to} writes a name that ends in {' or '.join(endings)}, not {plain(path.name)!r}"
        )
    session = read(run, everything=True)
    resolution = 1.0 if arguments.resolution is None else arguments.resolution
    say(plain(session.save(path, table=table, resolution=resolution), 4096))
    return FINE


def what_is_in(path: Path) -> Found:
    """Return the session of a recording, that of all ranks of a run, or a snapshot of torch."""
    found: Found = overview_of(path) if path.is_dir() else open_path(path)
    return found


def stem(run: Path) -> str:
    """Return the name of a recording without its ending."""
    endings = (f"{SUFFIX}.gz", SUFFIX, *reversed(ENDINGS))
    return next(
        (run.name.removesuffix(each) for each in endings if run.name.endswith(each)), run.stem
    )
