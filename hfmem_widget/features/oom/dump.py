"""The bundle of an out-of-memory error: a folder with its card, the session, and the allocator's blocks.

It has no path, no command line and no environment variable in it: of a source file only the name.
"""

from __future__ import annotations

import html
import json
import os
import pickle
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from hfmem_widget.errors import OptionError, SourceUnavailable
from hfmem_widget.monitor.ticker import done_within
from hfmem_widget.options import expanded
from hfmem_widget.recording.api import save
from hfmem_widget.recording.file import name_of, write_private
from hfmem_widget.recording.limits import SUFFIX
from hfmem_widget.session import Session
from hfmem_widget.text import plain

PREFIX, FORMAT = "hfmem-oom-", "hfmem-oom"
CARD, CARD_TEXT = "card.html", "card.txt"
BLOCKS, SESSION, MARK = "snapshot.pickle", f"session{SUFFIX}.gz", "about.json"
FILES = (CARD, CARD_TEXT, BLOCKS, SESSION, MARK)
"""What a bundle has, and all that is ever deleted."""

KEPT = 5  # bundles in one folder: the newest
MOST_BYTES = 512 << 20  # of all bundles in one folder: the oldest go

MOST_BLOCKS, MOST_FRAMES = 100_000, 32
PATIENCE = 10.0  # seconds that the end of a watch waits for the disk
ABANDONED = 3600.0  # seconds after which an incomplete bundle is that of a process that is gone

Segments = Sequence[Mapping[str, Any]]
Pieces = Mapping[str, Callable[[Path], object]]


def folder_of(path: str) -> Path:
    """Return the folder for bundles, which is made when it is needed; raise OptionError if it cannot be."""
    folder = expanded(path)
    there = folder if os.path.lexists(folder) else folder.parent
    if not there.is_dir():
        what = "it is no folder" if there == folder else "there is no folder to make it in"
    elif not os.access(there, os.W_OK | os.X_OK):
        what = "you may not write there"
    else:
        return folder
    raise OptionError(f"oom_dump cannot be {plain(path)!r}: {what}")


def dump(
    folder: Path,
    name: str,
    session: Session,
    card: Callable[[], Mapping[str, str]],
    segments: Callable[[], Segments],
    *,
    clock: Callable[[], float] = time.time,
) -> str:
    """Write a bundle, and return a sentence: where it is, or why there is none.

    `name` is what the user calls the folder, `card` returns the card by MIME type, `segments` those of the
    allocator (or raises `SourceUnavailable`), and `clock` seconds since the epoch.
    """
    drawn = cache(card)
    pieces: Pieces = {
        CARD: lambda path: write_private(path, _page(session.label, drawn()["text/html"])),
        CARD_TEXT: lambda path: write_private(path, f"{drawn()['text/plain']}\n".encode()),
        BLOCKS: lambda path: write_private(path, pickle.dumps(snapshot_of(segments()), protocol=4)),
        SESSION: partial(save, session),
    }
    sentences: list[str] = []

    def write() -> None:
        try:
            place, missing = _write_all(folder, session.label, pieces, clock())
        except Exception as error:  # noqa: BLE001  (the user's own error is what matters)
            sentences.append(f"The out-of-memory bundle could not be written: {_reason(error)}.")
            return
        failed = "".join(f" {piece} is missing: {why}." for piece, why in missing.items())
        where = f"{plain(name).rstrip('/')}/{place}"
        sentences.append(f"The out-of-memory bundle is in {where}.{failed}")

    if not done_within(PATIENCE, write):
        return f"The out-of-memory bundle was not complete after {PATIENCE:.0f} s."
    return sentences[0]


def _write_all(
    folder: Path, label: str, pieces: Pieces, now: float
) -> tuple[str, Mapping[str, str]]:
    """Write the pieces that can be written; return the bundle's name, and why others are missing."""
    name, missing = PREFIX + name_of(label, now), {}
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    while (folder / name).exists() or not (half := _made(folder / f".{name}.part")):
        name += "-2"  # another process ran out at the same instant
    try:
        for piece, write in pieces.items():
            try:
                write(half / piece)
            except SourceUnavailable:  # without a GPU there are none
                continue
            except Exception as error:  # noqa: BLE001  (no memory, no room: the others may still fit)
                missing[piece] = _reason(error)
        about = {"format": FORMAT, "version": 1, "written": round(now, 3), "label": plain(label)}
        write_private(half / MARK, json.dumps(about).encode() + b"\n")
        half.rename(folder / name)
    except BaseException:
        _remove(half)
        raise
    _keep_newest(folder, now)
    return name, missing


def _made(half: Path) -> Path | None:
    """Make a folder and return it; None if it is there."""
    try:
        half.mkdir(mode=0o700)
    except FileExistsError:
        return None
    return half


def _reason(error: BaseException) -> str:
    """Return why something could not be written, without the path."""
    text = getattr(error, "strerror", None) or str(error).rpartition(": ")[2]
    return plain(text).rstrip(".") or type(error).__name__


def _page(label: str, card: str) -> bytes:
    title = html.escape(plain(label))
    page = f'<!doctype html><meta charset="utf-8"><title>Out of memory: {title}</title>\n{card}\n'
    return page.encode("utf-8", "replace")


def snapshot_of(segments: Segments) -> dict[str, Any]:
    """Return segments as `torch.cuda.memory._dump_snapshot` writes them: numbers and short texts alone.

    Raise `SourceUnavailable` if there are none, and `ValueError` if there are too many.
    """
    if not segments:
        raise SourceUnavailable("there are no segments")
    count = sum(len(segment["blocks"]) for segment in segments)
    if count > MOST_BLOCKS:
        raise ValueError(f"{count:,} blocks are too many")
    frames: dict[tuple[str, int, str], dict[str, object]] = {}
    devices = 1 + max(int(segment["device"]) for segment in segments)
    return {
        "segments": [
            _figures_of(segment, frames)
            | {"blocks": [_figures_of(each, frames) for each in segment["blocks"]]}
            for segment in segments
        ],
        "device_traces": [[] for _ in range(devices)],
    }


def _figures_of(
    piece: Mapping[str, Any], frames: dict[tuple[str, int, str], dict[str, object]]
) -> dict[str, Any]:
    """Return the numbers and names of a segment or a block; of its source files the names alone."""
    figures: dict[str, Any] = {
        key: value if isinstance(value, int) else plain(value, 40)
        for key, value in piece.items()
        if isinstance(value, int | str)
    }
    if "segment_pool_id" in piece:
        figures["segment_pool_id"] = tuple(int(number) for number in piece["segment_pool_id"])
    called = []
    for frame in (piece.get("frames") or ())[:MOST_FRAMES]:
        file = str(frame.get("filename", "")).replace("\\", "/").rpartition("/")[2]
        key = plain(file), int(frame.get("line", 0)), plain(frame.get("name", ""))
        called.append(
            frames.setdefault(key, dict(zip(("filename", "line", "name"), key, strict=True)))
        )
    return figures | {"frames": called}


def _keep_newest(folder: Path, now: float) -> None:
    """Delete the oldest bundles beyond those that are kept; nothing that is not ours."""
    total = 0
    for at, (bundle, size) in enumerate(_bundles(folder)):
        total += size
        if at and (at >= KEPT or total > MOST_BYTES):
            _remove(bundle)
    for half in folder.glob(f".{PREFIX}*.part"):
        with suppress(OSError):
            status = half.lstat()
            if stat.S_ISDIR(status.st_mode) and now - status.st_mtime > ABANDONED:
                _remove(half)


def _bundles(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield the complete bundles of a folder with their sizes, newest first."""
    bundles = []
    for bundle in folder.glob(f"{PREFIX}*"):
        with suppress(OSError, ValueError, TypeError, LookupError):
            is_own = not bundle.is_symlink() and (bundle / MARK).stat().st_size < 4096
            about = json.loads((bundle / MARK).read_bytes()) if is_own else {}
            if about["format"] == FORMAT:
                sizes = [file.lstat().st_size for file in bundle.iterdir()]
                bundles.append((float(about["written"]), bundle, sum(sizes)))
    for _, bundle, size in sorted(bundles, reverse=True):
        yield bundle, size


def _remove(bundle: Path) -> None:
    """Delete a bundle; if something else is in it, that stays, and so does the folder."""
    for name in FILES:
        with suppress(OSError):
            (bundle / name).unlink()
    with suppress(OSError):
        bundle.rmdir()
