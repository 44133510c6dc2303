"""The directory of a run: one file for each process, each with one writer; no lock, no port, no pickle.

``RUN/run.json`` describes the run, rank 7 writes ``RUN/r00007-a0-node0001-4711.jsonl``. A reader opens only
regular files that the user owns, no links, in a directory that no other user may change.
"""

import itertools
import json
import os
import re
import stat
import time
import uuid
from collections.abc import Container
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hfmem_widget.errors import OptionError
from hfmem_widget.ranks.identity import safe_host
from hfmem_widget.recording.file import file_error, write_whole
from hfmem_widget.recording.limits import SUFFIX
from hfmem_widget.session.rank_records import Rank
from hfmem_widget.text import format_counted, plain, readable

RUN_FILE = "run.json"
FORMAT = "hfmem-run"
VERSION = 1
LARGEST_RUN_FILE = 1 << 16
PATIENCE = 20
"""The most attempts, 0.05 s apart, to read a file that another rank is writing."""

MOST_STREAMS = 8192
MOST_ENTRIES = 4 * MOST_STREAMS
"""The most names of a directory that are looked at."""

_STREAM = re.compile(
    r"r([0-9]{5,7})-a([0-9]{1,7})-([a-z0-9.-]{1,32})-([0-9]{1,10})(-p[0-9]{4})?\.jsonl"
)
_RUN = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class RunFile:
    """The content of ``run.json``: the id and the label of the run."""

    run: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Streams:
    """The readable files of a directory."""

    paths: tuple[Path, ...] = ()  # the files of ranks, in the order of their names
    why: str = ""
    """One sentence about files that are named like a rank's but not read; empty if there are none."""


@dataclass(frozen=True, slots=True)
class Member:
    """A rank and the directory of its run, which is not touched before `join`."""

    directory: Path
    rank: Rank
    launcher: int = 0
    """The process on this host that was taken for the only rank, but has turned out to start ranks."""

    def join(self) -> tuple[Path, str]:
        """Return where this rank is to write, and the run's id, or raise as `make_or_join` does."""
        run = make_or_join(self.directory).run
        if self.launcher:
            name = f"r00000-a0-{safe_host(self.rank.host)}-{self.launcher}.jsonl"
            with suppress(OSError):  # another rank has done so
                (self.directory / name).rename(withdrawn(self.directory, name))
        names = map(self.directory.joinpath, _names(self.rank))
        return next(path for path in names if not os.path.lexists(path)), run


def withdrawn(directory: Path, name: str) -> Path:
    """Return the path for the file of a process that is not a rank, apart from the ranks' files."""
    return directory / f"launcher-{name}"


def _names(rank: Rank) -> itertools.chain[str]:
    """Return the names that a rank's file may have: a process that has written one may be another by now."""
    name = f"r{rank.rank:05}-a{rank.attempt}-{safe_host(rank.host)}-{rank.pid}"
    parts = (f"{name}-p{part:04}.jsonl" for part in itertools.count(1))
    return itertools.chain([f"{name}.jsonl"], parts)


def make_or_join(directory: Path, label: str = "", now: float | None = None) -> RunFile:
    """Create the directory of a run, or join the run in it; of several processes that create it, one wins.

    Raises `OptionError` if it cannot be created or read, or if other users may write there.
    """
    try:
        # Those above it as usual; the last for the user alone.
        directory.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        if refused := refusal(directory):
            raise OptionError(refused)
        path = directory / RUN_FILE
        if not os.path.lexists(path):
            run = {"format": FORMAT, "version": VERSION, "run": uuid.uuid4().hex}
            named = {"label": plain(label), "created": time.time() if now is None else now}
            with suppress(FileExistsError):  # another was first
                write_whole(
                    path, [json.dumps(run | named, ensure_ascii=False).encode(), b"\n"], 0o600
                )
        # Where there are no links, another may be just writing it.
        for _ in range(PATIENCE):
            if path.stat().st_size:
                break
            time.sleep(0.05)
    except OSError as error:
        raise file_error("written", directory, error) from None
    return read_run(directory)


def read_run(directory: Path) -> RunFile:
    """Return the content of a run's ``run.json``; raise `OptionError` if it is not a run's directory."""
    path = directory / RUN_FILE
    try:
        with os.fdopen(open_own(path)[0], "rb") as file:
            fields = json.loads(file.read(LARGEST_RUN_FILE))
        run, label = fields["run"], fields.get("label", "")
        if fields["format"] != FORMAT or not _RUN.fullmatch(run):
            raise ValueError("of something else")  # noqa: TRY301
        version = fields["version"]
    except OSError as error:
        if isinstance(error, FileNotFoundError) and directory.is_dir():
            names = [each.name for each in sorted(directory.glob(f"*{SUFFIX}*"))]
            such = f", such as {plain(names[0])!r}" if names else ""
            what = f"it has no {RUN_FILE}. To open a recording, name its file{such}"
            raise OptionError(f"{plain(directory)} is not the folder of a run: {what}") from None
        raise file_error("read", path, error) from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        message = f"{plain(path)} is not the {RUN_FILE} of a run that hfmem_widget follows"
        raise OptionError(message) from None
    if version != VERSION:
        message = f"{plain(path)} is of a newer hfmem_widget: pip install -U hfmem-widget"
        raise OptionError(message)
    return RunFile(run, plain(label) if isinstance(label, str) else "")


def is_run(directory: Path) -> bool:
    """Return whether a path is the directory of a run."""
    return (directory / RUN_FILE).is_file()


def refusal(directory: Path) -> str:
    """Return why a directory cannot be trusted, as a clause; ``""`` if it can. Raises `OSError`."""
    status = directory.stat()
    if not stat.S_ISDIR(status.st_mode):
        return f"{plain(directory)} is not a directory"
    if status.st_uid != os.geteuid():
        return f"{plain(directory)} belongs to another user"
    if status.st_mode & stat.S_IWOTH:
        return f"everybody may write to {plain(directory)}: chmod o-w it"
    return ""


def streams(directory: Path, read_before: Container[str] = ()) -> Streams:
    """Return the ranks' files that may be read; those `read_before` are not looked at again."""
    try:
        if refused := refusal(directory):
            return Streams(why=f"No rank is read: {refused}.")
        with os.scandir(directory) as entries:
            named = [
                entry
                for entry in itertools.islice(entries, MOST_ENTRIES)
                if _STREAM.fullmatch(entry.name)
            ]
    except OSError as error:
        return Streams(why=f"No rank is read: {plain(directory)}: {readable(error)}.")
    named.sort(key=lambda entry: entry.name.removesuffix(".jsonl"))  # a first part before the next
    own = []
    for entry in named:
        with suppress(OSError):  # it has just been removed
            if entry.name in read_before or _is_own(entry.stat(follow_symlinks=False)):
                own.append(entry)
    foreign, beyond = len(named) - len(own), len(own) - MOST_STREAMS
    reasons = []
    if foreign:
        files = format_counted(foreign, "file")
        reasons.append(f"{files} not read: a link, no regular file, or another user's")
    if beyond > 0:
        reasons.append(f"{format_counted(beyond, 'file')} not read: more than {MOST_STREAMS:,}")
    return Streams(
        tuple(directory / entry.name for entry in own[:MOST_STREAMS]),
        "; ".join(reasons) + "." if reasons else "",
    )


def open_own(path: str | Path) -> tuple[int, os.stat_result]:
    """Open a regular file that the user owns: return its descriptor and status; else raise `OSError`."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, flags)
    status = os.fstat(descriptor)
    if not _is_own(status):
        os.close(descriptor)
        message = "not a regular file that you own"
        raise PermissionError(1, message)
    return descriptor, status


def _is_own(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
