"""Watched cells side by side: figures with their spread over repeats, and the difference to one of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from hfmem_widget.analysis.record import UNUSED, DeviceRecord, Record
from hfmem_widget.errors import OptionError
from hfmem_widget.features.compare.align import Line, by_step, by_time, steps_a_point
from hfmem_widget.features.compare.model import FIGURES, By, Compared, Comparison, Figure
from hfmem_widget.session import Certainty
from hfmem_widget.text import plain

MOST_CELLS = 8
"""More lines than that cannot be told apart."""

POINTS = 1200
"""Of all lines together."""

CERTAINTIES: tuple[Certainty, ...] = ("sampled", "at least", "exact")
"""From the weakest to the strongest."""


def compare(
    runs: Mapping[str, Sequence[Record]],
    *,
    by: str = "",
    device: str = "",
    baseline: str = "",
) -> Comparison:
    """Lay watched cells side by side.

    Parameters
    ----------
    runs : mapping of str to sequence of Record
        By name, the runs of each cell, oldest first.
    by : {"step", "time"}, optional
        What to align the lines by; steps by default where every cell has some.
    device : str, optional
        Its key; by default the one that most of them used, and there the one with the highest peak.
    baseline : str, optional
        Which of them the others are compared with; the first by default.

    Raises
    ------
    OptionError
        If there is nothing to compare, or no such device or baseline; the message says what there is.
    """
    if not runs:
        message = "nothing to compare: name at least one cell"
        raise OptionError(message)
    if len(runs) > MOST_CELLS:
        message = f"{len(runs)} cells are too many; compare at most {MOST_CELLS}"
        raise OptionError(message)
    if baseline and baseline not in runs:
        message = (
            f"{plain(baseline)!r} is not one of the compared cells: {', '.join(map(repr, runs))}"
        )
        raise OptionError(message)
    key = _device(runs, device)
    known = {
        name: [one for record in records if (one := record.device(key))]
        for name, records in runs.items()
    }
    how = _by(by, known)
    lines, width = _lines(known, how)
    sample = next(one for devices in known.values() for one in reversed(devices))
    return Comparison(
        cells=tuple(_compared(name, tuple(runs[name]), key, lines.get(name)) for name in runs),
        baseline=list(runs).index(baseline) if baseline else 0,
        device=key,
        device_name=sample.name,
        allocated_label=sample.allocated_label,
        reserved_label=sample.reserved_label,
        by=how,
        steps_a_point=width,
        notes=(*_other_devices(runs, key), *_notes(runs, known, lines, key)),
    )


def _device(runs: Mapping[str, Sequence[Record]], wanted: str) -> str:
    used: dict[str, list[float]] = {}
    for records in runs.values():
        for key in dict.fromkeys(device.key for record in records for device in record.devices):
            peaks = [one.peak.value for record in records if (one := record.device(key))]
            used.setdefault(key, []).append(max(peaks))
    if wanted and wanted not in used:
        message = (
            f"these cells did not use {plain(wanted)!r}; they used {', '.join(used) or 'none'}"
        )
        raise OptionError(message)
    if not used:
        message = "no memory was read while these cells ran"
        raise OptionError(message)
    return wanted or max(used, key=lambda key: (len(used[key]), ":" in key, max(used[key])))


def _by(wanted: str, known: Mapping[str, Sequence[DeviceRecord]]) -> By:
    if wanted not in {"", "step", "time"}:
        message = f"cells are aligned by 'step' or by 'time', not by {plain(wanted)!r}"
        raise OptionError(message)
    with_steps = [any(len(one.steps) > 1 for one in devices) for devices in known.values()]
    if wanted == "step" and not any(with_steps):
        message = "none of these cells has steps; align them by 'time'"
        raise OptionError(message)
    if wanted:
        return "step" if wanted == "step" else "time"
    return "step" if all(with_steps) else "time"


def _compared(name: str, records: tuple[Record, ...], key: str, line: Line | None) -> Compared:
    devices = [record.device(key) or UNUSED for record in records]
    used = [one for one in devices if one is not UNUSED]
    # Parts of several runs have no median that adds up: they are those of the run that has it.
    used.sort(key=lambda one: one.peak.value)
    usual = used[(len(used) - 1) // 2] if used else UNUSED
    known = {one.peak.certainty for one in used} or {"sampled"}
    return Compared(
        name=plain(name),
        records=records,
        figures={
            figure: _figure([of(*one) for one in zip(records, devices, strict=True)])
            for figure, of in FIGURES.items()
        },
        certainty=next(one for one in CERTAINTIES if one in known),
        at_peak=usual.at_peak,
        at_end=usual.at_end,
        line=line,
    )


def _figure(values: Sequence[float]) -> Figure:
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return Figure()
    return Figure(median(known), min(known), max(known), len(known))


def _lines(known: Mapping[str, Sequence[DeviceRecord]], by: By) -> tuple[dict[str, Line], int]:
    most = POINTS // len(known)
    if by == "time":
        curves = {
            name: [one.curve for one in devices if one.curve.shape[1] > 1]
            for name, devices in known.items()
        }
        return {name: by_time(found, most) for name, found in curves.items() if found}, 1
    tables = {
        name: [one.steps for one in devices if len(one.steps)] for name, devices in known.items()
    }
    width = steps_a_point([table for found in tables.values() for table in found], most)
    return {name: by_step(found, width) for name, found in tables.items() if found}, width


def _other_devices(runs: Mapping[str, Sequence[Record]], key: str) -> list[str]:
    used = {one.key for records in runs.values() for record in records for one in record.devices}
    others = sorted(used - {key})
    if not others:
        return []
    told = ", ".join(others) if len(others) < 3 else f"{others[0]} to {others[-1]}"
    return [f"Also used: {told}."]


def _notes(
    runs: Mapping[str, Sequence[Record]],
    known: Mapping[str, Sequence[DeviceRecord]],
    lines: Mapping[str, Line],
    key: str,
) -> list[str]:
    notes = []
    for name, records in runs.items():
        if not known[name]:
            notes.append(f"{plain(name)} did not use {key}.")
        elif name not in lines:
            notes.append(f"{plain(name)} has no data for the chart.")
        failed = [record.outcome for record in records if record.outcome != "done"]
        if failed:
            which = "" if len(records) == 1 else f" in {len(failed)} of {len(records)} runs"
            notes.append(f"{plain(name)}: {plain(failed[-1])}{which}.")
    return notes
