"""A session as it stands now: a screen, a line or a live line for a terminal, data for a program."""

from __future__ import annotations

import math
import os
import select
import threading
import time
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import numpy as np

from hfmem_widget.analysis.facts import GRAVITY, active_devices, label_of
from hfmem_widget.session import FINE_KINDS, Device, Finding, Ranks, Sample, Session
from hfmem_widget.session.series import OVERVIEW
from hfmem_widget.text import (
    format_bytes,
    format_count,
    format_counted,
    format_duration,
    format_share,
    json_number,
    number,
    plain,
    unit_for,
)
from hfmem_widget.view.findings import IN_SIGHT, MARKS, sentence
from hfmem_widget.view.line import length, rank_phrases
from hfmem_widget.view.ranks import flag_text, rank_cells
from hfmem_widget.view.table import aligned

BOLD, DIM, RED, YELLOW, USUAL = (f"\x1b[{code}m" for code in (1, 2, 31, 33, 0))

_COLOURS = {"critical": RED, "warn": YELLOW, "info": ""}

NARROWEST, WIDEST = 20, 120  # columns of a screen
NARROWEST_BAR, WIDEST_BAR = 4, 40  # columns
NEARLY_FULL = 0.95  # share in use from which the row of a device is red
SILENT = 4.0  # seconds without new data, which is due every second, until the screen says *silent*
ON_A_LINE = 3  # devices
MOST_OF_A_FINDING = 3  # lines
_AROUND = 10  # lines of a screen beside those of devices

_CELLS = ("\u2588", "\u2593", "\u2592", "\u2591")
"""The cells of a bar: allocated, the rest of reserved, the rest of the memory in use, free."""

_FIGURES = ("allocated", "reserved", "peak")


@dataclass(frozen=True, slots=True)
class DeviceNow:
    """One device's memory: bytes, NaN where not known."""

    device: Device
    labels: tuple[str, str]  # of allocated and reserved
    allocated: float
    reserved: float
    used: float
    peak: float

    @property
    def share(self) -> float:
        """The share in use: 1 if nothing is free, 0 if unknown."""
        in_use = [value for value in (self.allocated, self.reserved, self.used) if value > 0]
        return max(in_use, default=0.0) / self.device.total if self.device.total > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Glance:
    """The state of a session, as a screen shows it."""

    label: str
    state: str  # "running", or how it ended
    elapsed: float  # seconds up to the newest sample, or to the end
    phase: tuple[str, ...]  # labels of the open spans without steps, outermost first
    step: int  # the number of the newest finished step; 0 before the first
    steps: int  # finished steps
    devices: tuple[DeviceNow, ...]
    finding: Finding | None  # the newest
    silent: float = 0.0  # seconds since the last sign of life
    ranks: tuple[Session, Ranks] | None = None  # of a distributed run, in place of the devices

    @property
    def state_text(self) -> str:
        """The state, and the seconds of silence where they are many."""
        is_silent = self.state == "running" and self.silent >= SILENT
        return f"{self.state}, silent for {self.silent:.0f} s" if is_silent else self.state


def glance(session: Session, silent: float = 0.0) -> Glance:
    """Return the state of a session that has given no sign of life for `silent` seconds."""
    spans = session.spans
    is_open = (span for span in spans if span.stop is None and span.kind not in FINE_KINDS)
    phase = (plain(span.label) or span.kind for span in is_open)
    outcomes = [span.outcome for span in spans if span.parent is None and span.outcome]
    state = "broken off" if session.broken_off else "".join(outcomes[-1:]) or "finished"
    label = plain(session.label) or "run"
    newest = session.steps.table[-1:].tolist()
    return Glance(
        label=label,
        state="running" if session.running else state,
        elapsed=length(session),
        phase=tuple(name for name in phase if name != label),
        step=int(newest[0][session.steps.columns.index("last")]) if newest else 0,
        steps=session.steps.count,
        devices=tuple(_now(session, device) for device in active_devices(session)),
        finding=session.findings[-1] if session.findings else None,
        silent=silent,
        ranks=None if session.ranks is None else (session, session.ranks),
    )


def _now(session: Session, device: Device) -> DeviceNow:
    metrics = ("allocated", "reserved", "device_used")
    allocated, reserved, used = (
        session.value(session.last_sample, f"{device.key}/{metric}") for metric in metrics
    )
    labels = label_of(session, device, "allocated"), label_of(session, device, "reserved")
    peak = session.peak(f"{device.key}/allocated")
    return DeviceNow(device, labels, allocated, reserved, used, peak)


def screen(now: Glance, width: int = 80, height: int = 24, *, in_colour: bool = False) -> list[str]:
    """Return the lines of a screen of some columns and rows; devices without room share a line."""
    width = max(NARROWEST, min(width, WIDEST))
    shown, left = _that_fit(now.devices, max(1, height - _AROUND))
    lines = [(BOLD, f"{now.label} · {now.state_text} · {format_duration(now.elapsed)}")]
    if where := _where(now):
        lines.append(("", where))
    if now.ranks is None:
        lines += _device_lines(shown, left, width)
        lines += [] if now.finding is None else [("", ""), *_finding_lines(now.finding, width)]
    else:
        session, ranks = now.ranks
        findings = sorted(session.findings, key=lambda each: GRAVITY[each.severity])[:IN_SIGHT]
        below = [line for finding in findings for line in _finding_lines(finding, width)]
        below = [("", ""), *below, *[("", "")] * bool(below)]
        room = height - 1 - len(lines) - len(below)
        lines += [("", text) for text in _ranks_head(session, ranks, width, room)] + below
        room = height - 1 - len(lines)
        lines += [("", text) for text in _ranks_table(ranks, width, room)]
    drawn = [(style, _cut(text, width)) for style, text in lines[: max(1, height - 1)]]
    return [f"{style}{text}{USUAL}" if style and in_colour else text for style, text in drawn]


def _device_lines(
    shown: Sequence[DeviceNow], left: Sequence[DeviceNow], width: int
) -> list[tuple[str, str]]:
    fullness = [0.0, *(each.share for each in shown)]
    lines = [("", "")]
    lines += [
        (RED if share >= NEARLY_FULL else "", row)
        for share, row in zip(fullness, _rows(shown, width), strict=False)
    ]
    if left:
        allocated = format_bytes(math.fsum(each.allocated for each in left if each.allocated > 0))
        fullest = f"at most {format_share(max(each.share for each in left))} of one in use"
        more = format_counted(len(left), "more device")
        lines.append((DIM, f"{more}: {allocated} allocated together, {fullest}"))
    if shown:
        names = (*shown[0].labels, "other use", "free")
        keys = (f"{cell} {name}" for cell, name in zip(_CELLS, names, strict=True))
        lines.append((DIM, "  ".join(keys)))
    return lines


def _finding_lines(finding: Finding, width: int) -> list[tuple[str, str]]:
    wrapped = wrap(f"{MARKS[finding.severity][2]}: {sentence(finding.title)}", width)
    return [(_COLOURS[finding.severity], text) for text in wrapped[:MOST_OF_A_FINDING]]


def line(now: Glance) -> str:
    """Return the state in one line, such as for a log."""
    shown, left = _that_fit(now.devices, ON_A_LINE)
    devices = [
        f"{each.device.key} {format_bytes(each.allocated)} (peak {format_bytes(each.peak)})"
        + (f" of {format_bytes(each.device.total)}" if each.device.total > 0 else "")
        for each in shown
    ]
    if now.ranks is not None:
        devices = rank_phrases(now.ranks[1])
    more = [f"{len(left)} more"] if left else []
    state = [] if now.state_text == "running" else [now.state_text]
    where = [where] if (where := _where(now)) else []
    return " · ".join((format_duration(now.elapsed), *state, *where, *devices, *more))


def data(now: Glance) -> dict[str, Any]:
    """Return the state for a program: bytes and seconds, None where not known."""
    finding = now.finding
    return {
        "schema": "hfmem.now/1",
        "label": now.label,
        "state": now.state,
        "elapsed": round(now.elapsed, 4),
        "silent": round(now.silent, 1),
        "phase": list(now.phase),
        "step": now.step,
        "steps": now.steps,
        "devices": [
            {"key": each.device.key, "name": each.device.name}
            | {metric: json_number(getattr(each, metric)) for metric in _FIGURES}
            | {"device_used": json_number(each.used), "total": json_number(each.device.total)}
            for each in now.devices
        ],
        "finding": None
        if finding is None
        else {"kind": finding.kind, "severity": finding.severity, "title": finding.title},
        **({} if now.ranks is None else {"ranks": ranks_data(now.ranks[1])}),
    }


def _where(now: Glance) -> str:
    step = []
    if now.steps:
        so_far = "" if now.step == now.steps else f" ({format_counted(now.steps, 'step')} so far)"
        step = [f"step {format_count(now.step)}{so_far}"]
    phase = [" \u203a ".join(now.phase)] if now.phase else []
    return " · ".join((*phase, *step))


def _that_fit(
    devices: Sequence[DeviceNow], room: int
) -> tuple[Sequence[DeviceNow], Sequence[DeviceNow]]:
    if len(devices) <= room:
        return devices, ()
    fullest = sorted(devices, key=lambda each: -each.share)
    return fullest[:room], fullest[room:]


def _rows(shown: Sequence[DeviceNow], width: int) -> list[str]:
    if not shown:
        return ["No memory was read yet."]
    divisor, unit = unit_for(
        max(max(device.device.total, device.used, device.allocated) for device in shown)
    )
    heads = ["device", "", *shown[0].labels, "peak", "in use", f"of {unit}"]
    figures = [
        [device.device.key, ""]
        + [number(getattr(device, metric), divisor) for metric in _FIGURES]
        + [number(device.used, divisor), number(device.device.total, divisor)]
        for device in shown
    ]
    bare = aligned([heads, *figures]).split("\n")
    room = min(WIDEST_BAR, width - max(map(len, bare)))
    if room >= NARROWEST_BAR:
        for device, row in zip(shown, figures, strict=True):
            row[1] = _bar(device, room)
    return aligned([heads, *figures], {0, 1}).split("\n")


def _bar(device: DeviceNow, cells: int) -> str:
    total, drawn, bar = device.device.total, 0, ""
    for cell, value in zip(_CELLS, (device.allocated, device.reserved, device.used), strict=False):
        if value > 0 and total > 0:
            end = min(cells, math.ceil(cells * value / total))
            bar += cell * max(0, end - drawn)
            drawn = max(drawn, end)
    return bar + _CELLS[-1] * (cells - drawn)


def _cut(text: str, width: int) -> str:
    """Return a text cut to some columns: a wide letter takes two, a combining one none."""
    columns = 0
    for at, char in enumerate(text):
        if not unicodedata.combining(char):
            columns += 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1
        if columns > width:
            return text[:at]
    return text


SECONDS = 120  # drawn at most, a column each
_HEIGHT = 5  # rows of the picture
_LEAST_ROWS = 3  # of the table of ranks
_ALL, _SOME = "\u2588", "\u2592"
_LESS_WANTED = ("device", "activations", "weights", "restarts", "node")
"""Columns that are left out first where there is little room."""


def _ranks_head(session: Session, ranks: Ranks, width: int, room: int) -> list[str]:
    lines = wrap(" · ".join(rank_phrases(ranks)), width)
    drawn = ["", *_picture(session, width)]
    return [*lines, *drawn] if room >= len(lines) + len(drawn) + _LEAST_ROWS + 2 else lines


def _picture(session: Session, width: int) -> list[str]:
    # The lowest and the highest rank in each of the newest seconds, in bytes; NaN where unknown.
    indices = (session.index(f"{OVERVIEW}/{metric}") for metric in ("lowest", "allocated"))
    stop = math.floor(session.last_sample.time)
    start = max(0, stop - min(SECONDS, width - 1) + 1)
    part = session.between(start - 1.0, math.inf, [at for at in indices if at is not None])
    at = part.time.searchsorted(np.arange(start, stop + 1) + 1.0) - 1
    low, high = np.where(at < 0, np.nan, part.low[at, 0]).tolist(), part.high[at, 1].tolist()
    highest = max((value for value in high if value > 0), default=0.0)
    total = next((each.total for each in session.devices if each.key == OVERVIEW), math.nan)
    top = total if total > 0 and highest > 0.4 * total else highest
    if not top > 0:
        return []
    lines = []
    for row in range(_HEIGHT, 0, -1):
        level = (row - 0.5) / _HEIGHT * top
        ranges = zip(low, high, strict=True)
        cells = (_ALL if one >= level else _SOME if two >= level else " " for one, two in ranges)
        lines.append("".join(cells).rstrip())
    key = f"{_ALL} all ranks  {_SOME} the highest  of {format_bytes(top)}, newest {len(low)} s"
    return [*lines, key]


def _ranks_table(ranks: Ranks, width: int, room: int) -> list[str]:
    # Of the rows as many as fit: the worst rank and the flagged ones come first.
    heads, rows = rank_cells(ranks)
    room = max(_LEAST_ROWS, room - 1)
    flagged = [at for at, row in enumerate(ranks.table[: len(rows)]) if flag_text(row)]
    rest = [at for at in range(1, len(rows)) if at not in flagged]
    wanted = list(dict.fromkeys((*([0] if rows else []), *flagged, *rest)))[:room]
    rows = [rows[at] for at in sorted(wanted)]
    for left_out in ("", *_LESS_WANTED):
        if left_out and left_out in heads:
            at = heads.index(left_out)
            heads = [*heads[:at], *heads[at + 1 :]]
            rows = [[*row[:at], *row[at + 1 :]] for row in rows]
        words = {at for at, head in enumerate(heads) if head in {"rank", "node", "device", ""}}
        text = aligned([heads, *rows], words) if rows else ""
        if max(map(len, text.split("\n"))) <= width:
            break
    return text.split("\n")


def ranks_data(ranks: Ranks) -> dict[str, Any]:
    """Return the ranks for a program: bytes and seconds, None where not known."""
    return {
        "world": ranks.world,
        "nodes": ranks.nodes,
        "reporting": ranks.reporting,
        "median": json_number(ranks.median),
        "lowest": json_number(ranks.lowest),
        "table": [
            {
                "rank": row.rank,
                "host": row.host,
                "peak": json_number(row.peak),
                "certainty": row.certainty,
                "step": row.step,
                "silent": round(row.silent, 1),
                "flag": row.flag,
            }
            for row in ranks.table
        ],
    }


PACE = 0.5  # seconds between two live lines
FEWEST_ROWS = 6  # of a terminal that gives one away
SAVE, RESTORE = "\x1b7", "\x1b8"  # the cursor's place
NO_WRAP, WRAP, NOT_DIM, TO_LINE_END = "\x1b[?7l", "\x1b[?7h", "\x1b[22m", "\x1b[K"

_shown_on: dict[int, BottomLine] = {}
"""By file descriptor, the line in a terminal's last row: of nested watches the first one's."""


def terminal_of(stream: Any) -> int | None:
    """Return the file descriptor of a terminal that can keep a row for itself; None of anything else."""
    try:
        number: int = stream.fileno()
        is_able = os.isatty(number) and os.environ.get("TERM", "dumb") != "dumb"
    except (AttributeError, OSError, ValueError):
        return None
    return number if is_able and os.name == "posix" else None


class BottomLine:
    """A live line in a terminal's last row, which does not scroll (DECSTBM) until `close`."""

    def __init__(self, terminal: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._terminal = terminal  # a file descriptor
        self._clock = clock
        self._rows = 0
        self._has_ended = False
        self._lock = threading.Lock()
        self._next = clock() + PACE  # a quick cell shows none

    def __call__(self, session: Session, samples: Sequence[Sample]) -> None:
        """Show the state of a session, every `PACE` seconds."""
        del samples
        if self._clock() < self._next:
            return
        self._next = self._clock() + PACE
        figures = line(glance(session)).partition("\n")[0]
        with self._lock:
            if not self._has_ended:
                self._write(f'memwatch "{plain(session.label)}" · {figures}')

    def _write(self, text: str) -> None:
        columns, rows = os.get_terminal_size(self._terminal)
        if rows < FEWEST_ROWS or _shown_on.setdefault(self._terminal, self) is not self:
            return
        keep = ""
        if rows != self._rows:
            # One row down and up again moves up any text in the last row.
            keep = f"\x1bD\x1b[A{SAVE}\x1b[1;{rows - 1}r{RESTORE}"
            self._rows = rows
        row = f"\x1b[{rows};1H{NO_WRAP}{DIM}{text[: columns - 1]}{NOT_DIM}{TO_LINE_END}{WRAP}"
        self._send(f"{keep}{SAVE}{row}{RESTORE}")

    def close(self) -> None:
        """Empty the row, and let it scroll again."""
        with self._lock:
            self._has_ended = True
            if self._rows:
                del _shown_on[self._terminal]
                self._send(f"{SAVE}\x1b[r\x1b[{self._rows};1H{TO_LINE_END}{RESTORE}")
                self._rows = 0

    def _send(self, text: str) -> None:
        # Skip a stopped terminal (Ctrl-S), for which the poller would wait.
        _, ready, _ = select.select([], [self._terminal], [], 0)
        if ready:
            os.write(self._terminal, text.encode())
