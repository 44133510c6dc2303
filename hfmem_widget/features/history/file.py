"""The file of a history: one JSON line for each run. It is only ever added to."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from hfmem_widget.analysis.record import UNLABELLED, DeviceRecord, Record
from hfmem_widget.analysis.record_of import MOST_FINDINGS, SENTENCE
from hfmem_widget.errors import OptionError
from hfmem_widget.recording.fields import (
    DeviceKey,
    Figure,
    Name,
    RankNumber,
    Text,
    available,
    decoder,
)
from hfmem_widget.recording.file import (
    cannot_read,
    cannot_write,
    check_folder,
    open_regular,
    write_all,
)
from hfmem_widget.recording.limits import LARGEST
from hfmem_widget.session import Certainty, Peak
from hfmem_widget.text import MAX_LENGTH, plain

KIND = "cell"

LONGEST_LINE = 1 << 16
MOST_READ = 16 << 20
"""Bytes of a file that are read, the newest."""

MOST_DEVICES = 64


def read_records(path: Path) -> list[Record]:
    """Return the runs that a file has, oldest first; none if it is not there. Damaged lines are left out.

    Raises `OptionError` if it is no file, cannot be read or written, or has something else in it.
    """
    name = plain(path)
    if not os.path.lexists(path):
        check_folder(path)
        return []
    try:
        with open_regular(path) as file:
            if not os.access(path, os.W_OK):
                raise OptionError(f"{name} cannot be written: you may not write to it")
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - MOST_READ))
            lines = file.read(MOST_READ).split(b"\n")
    except OSError as error:
        raise cannot_read(path, error) from None
    runs = [run for line in lines if (run := _run(line)) is not None]
    if not runs and any(line.strip() for line in lines):
        raise OptionError(
            f"{name} is no history of %memcompare, and nothing is added to it; name a new file"
        )
    return runs


def append(path: Path, runs: Iterable[Record]) -> None:
    """Add runs to a file, which is made if it is not there; raise `OptionError` if it cannot be written."""
    data = b"".join(map(_line, runs))
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            # A line that was torn, as by a full disk, costs itself alone.
            torn = size and os.pread(descriptor, 1, size - 1) != b"\n"
            try:
                write_all(descriptor, b"\n" * bool(torn and data) + data)
            except OSError:
                if not size:  # what could not be begun does not stay as an empty file
                    path.unlink(missing_ok=True)
                raise
        finally:
            os.close(descriptor)
    except OSError as error:
        raise cannot_write(path, error) from None


def _line(run: Record) -> bytes:
    fields = {
        "k": KIND,
        "kernel": run.kernel,
        "number": run.number,
        "name": run.name,
        "identity": run.identity,
        "kind": run.kind,
        "outcome": run.outcome,
        "started": round(run.started_at, 3),
        "seconds": round(run.duration, 4),
        "devices": [
            [use.key, *map(_figure, (use.before, use.after, use.peak.value)), use.peak.certainty]
            for use in run.moved[:MOST_DEVICES]
        ],
        "findings": run.findings,
    }
    if run.worst_rank is not None:
        fields["worst_rank"] = run.worst_rank
    return (
        json.dumps(fields, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"
    )


def _figure(value: float) -> int | None:
    return round(value) if math.isfinite(value) else None


class _Label(Text):
    most = MAX_LENGTH


class _Identity(Text):
    most = 200


class _Sentence(Text):
    most = SENTENCE


class _HistoryLine(Struct, tag_field="k", tag=KIND):
    kernel: Name
    number: Annotated[int, Meta(gt=-int(LARGEST), lt=int(LARGEST))] | None
    name: _Label
    identity: _Identity
    kind: Name
    outcome: _Label
    started: Figure
    seconds: Figure
    devices: list[tuple[DeviceKey, Figure | None, Figure | None, Figure | None, Certainty]]
    findings: list[tuple[Name, _Sentence]]
    worst_rank: RankNumber | None = None


_LINE = decoder(_HistoryLine)


def _run(line: bytes) -> Record | None:
    """Return what a line says; None if it is no run, whoever has written it."""
    if not 2 < len(line) <= LONGEST_LINE:
        return None
    try:
        decoded = _LINE.decode(line)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return Record(
        label="" if decoded.identity.startswith(UNLABELLED) else decoded.name,
        title=decoded.name,
        identity=decoded.identity,
        kernel=decoded.kernel,
        number=decoded.number,
        kind=decoded.kind,
        outcome=decoded.outcome,
        started_at=decoded.started,
        duration=decoded.seconds,
        devices=tuple(
            DeviceRecord(
                key=key,
                before=available(before),
                after=available(after),
                peak=Peak(available(peak), certainty),
            )
            for key, before, after, peak, certainty in decoded.devices[:MOST_DEVICES]
        ),
        findings=tuple(decoded.findings[:MOST_FINDINGS]),
        worst_rank=decoded.worst_rank,
    )
