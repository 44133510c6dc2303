"""Builds a session from the lines of a recording: of a whole file, or of one that still grows."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from hfmem_widget.errors import OptionError
from hfmem_widget.recording import check, limits
from hfmem_widget.recording.check import Rows, StepsLine, require
from hfmem_widget.recording.limits import LONGEST_LINE, MOST_FIGURES
from hfmem_widget.recording.lines import Fold, fold_of, joined
from hfmem_widget.session import (
    Contents,
    Device,
    Phase,
    Phases,
    Polling,
    Sample,
    Series,
    Session,
    Spans,
    Steps,
    Timeline,
)
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.session.stacks import StackRecording, Stacks
from hfmem_widget.session.steps import FIGURES, PER_DEVICE
from hfmem_widget.session.timeline import Floats, resized
from hfmem_widget.text import format_counted


class LineReader:
    """What all readers share: the position in a stream of lines, and the state that the next line builds on.

    `dropped` counts the lines that could not be read, `holes` the missing blocks of samples. The newest line
    was written at `last_sign`, by the writer's clock.
    """

    _longest: ClassVar[int] = LONGEST_LINE

    def __init__(self) -> None:
        self.dropped = self.holes = 0
        self.last_sign = -math.inf
        self._rest = b""
        self._skips = False
        self._values: Floats = np.empty(0)
        self._next_block = 0
        self._steps_of: tuple[str, ...] = ()

    def _lines(self, data: bytes) -> Iterator[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if self._skips:
                self._skips = False
            elif line:
                yield line
        if len(self._rest) > self._longest:
            self.dropped += not self._skips
            self._rest, self._skips = b"", True

    def _note_block(self, block: int, wall: float) -> None:
        self.last_sign = max(self.last_sign, wall)
        self.holes += max(0, block - self._next_block)
        self._next_block = max(self._next_block, block + 1)

    def _widen(self, columns: int) -> None:
        self._values = resized(self._values, len(self._values) + columns)

    def _samples(self, rows: Rows) -> tuple[Floats, Floats] | None:
        """Return the times and all columns of a block, None if it is empty, or raise `ValueError`."""
        samples, width = len(rows.times), len(self._values)
        # No writer makes a block of so many figures.
        is_too_large = samples > 1 and samples * width > MOST_FIGURES
        is_fine = not is_too_large and max(rows.columns, default=-1) < width
        require(is_fine, "a block of other columns")
        table = rows.table() if samples else None
        self._note_block(rows.block, rows.wall)
        if table is None:
            return None
        time, values = table
        block = np.tile(self._values, (samples, 1))
        block[:, rows.columns] = values
        self._values = block[-1].copy()
        return time, block

    def _note_devices(self, line: StepsLine) -> None:
        """Note the devices of the steps: those known, and perhaps more; `ValueError` if they are others."""
        devices = self._steps_of if line.devices is None else tuple(line.devices)
        width = len(FIGURES) + len(devices) * len(PER_DEVICE)
        is_known = devices[: len(self._steps_of)] == self._steps_of
        require(is_known and (not line.rows or len(line.rows[0]) == width), "steps of others")
        self._steps_of = devices


DETAIL = 4096.0
"""Seconds of samples that are read one by one; a longer run is read from its folds instead."""

UNBOUNDED = 1 << 40

MOST_OF_STEPS = 100 * limits.MOST_STEPS
"""The most figures of steps that are kept of a recording whose every step is asked for: 160 MB."""

SILENT = 15.0
"""Seconds without a line after which a run counts as ended; a writer adds one every second."""

MOST_PUT_OFF = 32 << 20
"""The most bytes of blocks that wait to be read: more than an honest writer makes within `DETAIL`."""

_START_OF_ROWS = re.compile(rb'{"k":"rows","n":(\d{1,15}),"w":(\d{1,15}(?:\.\d{1,9})?),')
_NO_SAMPLES = b',"t":[],"s":[],"v":[]}'

NO_END = "The recording has no end: the process was killed, or has written nothing for 15 seconds."
GROWS = "This recording is still being written. Open it again to see more."
NOT_A_RECORDING = "not a recording of hfmem_widget: its first line is not that of a recording"


class StreamReader(LineReader):
    """Reads the bytes of a recording, in pieces of any size, and builds a session from them.

    With `everything`, every sample and every step is kept, instead of folding those of a long run. Some lines
    are only read by `session`, which may add to `dropped`.
    """

    def __init__(self, *, everything: bool = False) -> None:
        super().__init__()
        self.head: check.Head | None = None
        self.end: check.End | None = None
        self._devices: tuple[Device, ...] = ()
        self._series: tuple[Series, ...] = ()
        self._time = -math.inf
        self._everything = everything
        self._timeline: Timeline | None = (
            Timeline(0, UNBOUNDED, UNBOUNDED) if everything else Timeline(0)
        )
        self._steps = Steps(limits.MOST_STEPS, MOST_OF_STEPS) if everything else Steps()
        self._folds: list[Fold] = []
        self._unfolded: list[Fold] = []
        self._blocks: list[bytes] = []
        self._bytes_of_blocks = 0
        self._gaps: list[tuple[float, float]] = []
        self._spans: dict[int, check.SpanLine] = {}
        self._steps_made = 0
        self._phases: dict[int, check.PhasesLine] = {}
        self._items: dict[str, list[Any]] = defaultdict(list)
        self._contents = Contents()
        self._recipe: dict[str, Any] = {}

    def feed(self, data: bytes) -> None:
        """Read the next bytes; a line is used once it is complete."""
        for line in self._lines(data):
            block = _START_OF_ROWS.match(line)
            if block is None:
                self._take(line)
                continue
            self._note_block(int(block[1]), float(block[2]))
            if not line.endswith(_NO_SAMPLES):
                # Put off: of a long run the folds are read instead, a day of them within seconds.
                self._blocks.append(line)
                self._bytes_of_blocks += len(line)
                if self._bytes_of_blocks > MOST_PUT_OFF:
                    self._catch_up()

    def _catch_up(self) -> None:
        for line in self._forget_blocks():
            self._take(line)

    def _forget_blocks(self) -> list[bytes]:
        blocks, self._blocks, self._bytes_of_blocks = self._blocks, [], 0
        return blocks

    def _take(self, line: bytes) -> None:
        try:
            parsed = check.parse(line)
            if parsed is not None:
                require(self.head or isinstance(parsed, check.Head), "no head")
                self._enter(parsed)
        except OptionError:
            raise
        except ValueError:
            self.dropped += 1

    def session(self, now: float = -math.inf) -> Session:
        """Return the session that was read so far.

        A run without a sign of life for `SILENT` seconds before `now`, by the wall clock, has ended.
        """
        head, end = self.head, self.end
        if head is None:
            raise OptionError(NOT_A_RECORDING)
        self._catch_up()
        timeline, steps = self._whole_timeline(), copy(self._steps)
        steps.count = max(self._steps_made, steps.count)
        peaks = tuple(self._items["live"])
        is_host = any(peak.device == "cpu" for peak in peaks)
        recording = StackRecording("operators" if is_host else "allocator", snapshot=NOT_AVAILABLE)
        last = Sample(self._time, tuple(self._values.tolist()))
        session = Session(
            head.label,
            started_at=head.started,
            devices=self._devices,
            series=self._series,
            last_sample=None if self._time == -math.inf else last,
            timeline=timeline,
            steps=steps,
            spans=Spans(line.span(self._series) for line in self._spans.values()),
            phases=Phases({root: self._phase(line) for root, line in self._phases.items()}),
            polling=Polling(head.interval, head.interval),
            contents=self._contents,
            notes=self._items["note"],
            findings=self._items["finding"],
            guides=self._items["guide"],
            stacks=Stacks(peaks, recording) if peaks else None,
            software=dict([*head.software.items(), *(end.software.items() if end else ())]),
        )
        session.recipe = self._recipe
        session.moves = list(self._items["move"])
        if end is not None:
            session.stopped_at, session.broken_off = end.stopped, end.broken_off
            session.polling = replace(end.polling, interval=head.interval)
        elif now - self.last_sign > SILENT:
            session.stopped_at = max(head.started, self.last_sign)
            session.broken_off = True
            session.notes.append(NO_END)
        elif math.isfinite(now):
            session.notes.append(GROWS)
        if self.dropped:
            lines = format_counted(self.dropped, "line")
            session.notes.append(f"{lines} of the recording could not be read.")
        if self.holes:
            blocks = format_counted(self.holes, "block")
            session.notes.append(f"The recording lacks {blocks} of samples.")
        return session

    def _enter(self, line: object) -> None:  # noqa: C901, PLR0912  (a case for each kind of line)
        match line:
            case check.Head():
                self._enter_head(line)
            case check.Columns():
                self._catch_up()
                series = line.series
                require(line.first == len(self._series), "columns that are not the next")
                self._devices = line.devices
                self._series += series
                self._widen(len(series))
                if self._timeline is not None:
                    self._timeline.widen(len(self._series))
            case check.Rows():
                self._enter_rows(line)
            case check.FoldLine():
                self._enter_fold(line.fold())
            case check.SpanLine():
                if line.id in self._spans or len(self._spans) < limits.MOST_SPANS:
                    self._spans[line.id] = line
                else:
                    self.dropped += 1
            case check.StepsLine():
                self._enter_steps(line)
            case check.PhasesLine():
                self._phases[line.root] = line
            case check.Item():
                # None ends the list at this position; else the item is appended, or replaces another.
                end = None if line.item is None else line.place + 1
                self._items[line.kind][line.place : end] = filter(None, [line.item])
            case check.Gap():
                start, stop = line.t
                self._gaps.append((start, max(start, stop)))
            case Contents():
                self._contents = line
            case check.Recipe():
                self._recipe = line.of
            case check.End():
                self.end = line
            case _:
                raise NotImplementedError(f"nobody reads {type(line).__name__}")

    def _enter_head(self, head: check.Head) -> None:
        if self.head is not None:
            self.dropped += 1
            return
        if head.version > limits.VERSION:
            raise OptionError(
                f"this recording has version {head.version} of the format, and this hfmem_widget reads "
                f"version {limits.VERSION}: pip install -U hfmem-widget"
            )
        self.head = head
        self.last_sign = max(self.last_sign, head.started)

    def _enter_rows(self, rows: Rows) -> None:
        samples = self._samples(rows)
        if samples is None:
            return
        time, block = samples
        self._time = float(time[-1])
        if self._timeline is not None:
            self._timeline.extend(time, block)
        else:
            self._unfolded.append(fold_of(time, block))

    def _enter_fold(self, fold: Fold) -> None:
        require(len(fold.low) <= len(self._values), "a fold of other columns")
        self._folds.append(fold)
        self._unfolded.clear()
        if fold.stop > DETAIL and not self._everything:
            self._timeline = None
            self._forget_blocks()
        if fold.stop > self._time and not self._blocks:
            self._time = fold.stop
            self._values[: len(fold.last)] = fold.last

    def _enter_steps(self, line: StepsLine) -> None:
        self._note_devices(line)
        self._steps_made = max(self._steps_made, line.count)
        self._steps.widen(self._steps_of)
        if line.rows:
            self._steps.extend(np.array(line.rows))

    def _phase(self, line: check.PhasesLine) -> Iterator[Phase]:
        spans = {span.id: span.span(self._series) for span in line.spans}
        for entry in line.phases:
            known = {key: spans[at] for key, at in entry.highest.items() if at in spans}
            yield entry.phase({key: span for key, span in known.items() if key in span.peaks})

    def _whole_timeline(self) -> Timeline:
        rows = self._timeline
        if rows is None or (not len(rows) and self._folds):
            rows = self._from_folds()
        for gap in self._gaps:
            if gap not in rows.gaps:
                rows.add_gap(*gap)
        return rows

    def _from_folds(self) -> Timeline:
        width, folds = len(self._series), [*self._folds, *self._unfolded]
        # Checked before memory is reserved for each series: there may be many, and the folds empty.
        while len(folds) > Timeline(width).most_rows:
            folds = [joined(folds[at : at + 2]) for at in range(0, len(folds), 2)]
        low, high = (np.full((len(folds), width), np.nan) for _ in range(2))
        for row, fold in enumerate(folds):
            low[row, : len(fold.low)], high[row, : len(fold.high)] = fold.low, fold.high
        return Timeline.from_rows(
            [fold.start for fold in folds],
            low,
            high,
            bucket=max(1, *(fold.samples for fold in folds)),
            samples=sum(fold.samples for fold in folds),
        )
