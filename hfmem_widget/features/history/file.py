"""The file of a history: one JSON line for each run. It is only ever added to."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from hfmem_widget.errors import OptionError
from hfmem_widget.features.history.model import CellRun, DeviceUse
from hfmem_widget.session import Certainty
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.text import DEVICE_KEY, plain

KIND = "cell"

LONGEST_LINE = 1 << 16
MOST_READ = 16 << 20
"""Bytes of a file that are read, the newest."""

MOST_DEVICES, MOST_FINDINGS = 64, 16
SENTENCE = 300
_LARGEST = 2.0**60


def read_runs(path: Path) -> list[CellRun]:
    """Return the runs that a file has, oldest first; none if it is not there. Damaged lines are left out.

    Raises
    ------
    OptionError
        If it cannot be used: it is no file, cannot be read or written, or has something else in it.
    """
    name = plain(path)
    if not os.path.lexists(path):
        if os.access(path.parent, os.W_OK | os.X_OK):
            return []
        there = "you may not write there" if path.parent.is_dir() else "there is no such folder"
        message = f"{name} cannot be written: {there}"
        raise OptionError(message)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            message = f"{name} is no regular file; name a new file"
            raise OptionError(message)
        if not os.access(path, os.W_OK):
            message = f"{name} cannot be written: you may not write to it"
            raise OptionError(message)
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - MOST_READ))
            lines = file.read(MOST_READ).split(b"\n")
    except OSError as error:
        message = f"{name} cannot be read: {error.strerror or error}"
        raise OptionError(message) from None
    runs = [run for line in lines if (run := _run(line)) is not None]
    if not runs and any(line.strip() for line in lines):
        message = (
            f"{name} is no history of %memhistory, and nothing is added to it; name a new file"
        )
        raise OptionError(message)
    return runs


def append(path: Path, runs: Iterable[CellRun]) -> None:
    """Add runs to a file, which is made if it is not there.

    Raises
    ------
    OptionError
        If it cannot be written.
    """
    data = b"".join(map(_line, runs))
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            # A line that was torn, as by a full disk, costs itself alone.
            torn = size and os.pread(descriptor, 1, size - 1) != b"\n"
            left = memoryview(b"\n" * bool(torn and data) + data)
            while left:
                left = left[os.write(descriptor, left) :]
        finally:
            os.close(descriptor)
    except OSError as error:
        message = f"{plain(path)} cannot be written: {error.strerror or error}"
        raise OptionError(message) from None


def _line(run: CellRun) -> bytes:
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
            [use.key, *map(_figure, (use.before, use.after, use.peak)), use.certainty]
            for use in run.devices
        ],
        "findings": run.findings,
    }
    return (
        json.dumps(fields, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"
    )


def _figure(value: float) -> int | None:
    return round(value) if math.isfinite(value) else None


def _run(line: bytes) -> CellRun | None:
    """Return what a line says; None if it is no run, whoever has written it."""
    if not 2 < len(line) <= LONGEST_LINE:
        return None
    try:
        fields = json.loads(line)
        return _checked(fields) if fields["k"] == KIND else None
    except (ValueError, TypeError, LookupError, RecursionError, OverflowError):
        return None


def _checked(fields: Mapping[str, Any]) -> CellRun:
    number = fields["number"]
    return CellRun(
        kernel=_text(fields["kernel"], 40),
        number=None if number is None else int(_number(number)),
        name=_text(fields["name"]),
        identity=_text(fields["identity"], 200),
        kind=_text(fields["kind"], 40),
        outcome=_text(fields["outcome"]),
        started_at=_number(fields["started"]),
        duration=_number(fields["seconds"]),
        devices=tuple(_use(*use) for use in fields["devices"][:MOST_DEVICES]),
        findings=tuple(
            (_text(kind, 40), _text(title, SENTENCE))
            for kind, title in fields["findings"][:MOST_FINDINGS]
        ),
    )


def _use(key: object, before: object, after: object, peak: object, certainty: Any) -> DeviceUse:
    if not DEVICE_KEY.fullmatch(_text(key)) or certainty not in get_args(Certainty):
        raise ValueError
    edges = _figure_of(before), _figure_of(after)
    return DeviceUse(_text(key), *edges, _figure_of(peak), certainty)


def _figure_of(value: object) -> float:
    return NOT_AVAILABLE if value is None else _number(value)


def _text(value: object, limit: int = 120) -> str:
    if not isinstance(value, str):
        raise TypeError
    return plain(value, limit)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LARGEST:
        raise TypeError
    return float(value)
