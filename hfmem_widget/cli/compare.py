"""``hfmem compare A B``: two recordings side by side, and whether the second takes more."""

import json
import math
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hfmem_widget.analysis.facts import NEXT_TO_NOTHING, SpanCost
from hfmem_widget.analysis.record import Record, of_stacks, record_of, whole
from hfmem_widget.cli.output import FINE, NO, say
from hfmem_widget.cli.write import Found, stem, what_is_in
from hfmem_widget.errors import OptionError
from hfmem_widget.features.compare.api import of_runs
from hfmem_widget.features.compare.model import Comparison
from hfmem_widget.features.compare.text import markdown, percent_text, text, verdicts
from hfmem_widget.recording.file import checked_path
from hfmem_widget.session import Session
from hfmem_widget.session.stacks import Snapshot
from hfmem_widget.text import (
    for_markdown,
    format_bytes,
    json_data,
    parse_bytes,
    parse_share,
    plain,
    wrong_value,
)

_FIGURES: dict[str, Callable[[SpanCost], tuple[str, float]]] = {
    "peak": lambda device: (f"peak of {device.allocated_label}", device.peak.value),
    "left": lambda device: ("left behind", device.left_behind),
    "reserved": lambda device: (f"peak of {device.reserved_label}", device.reserved_peak),
}
"""By metric, what it is called on a device, and its value in bytes."""

DONE = "done"

SENTENCE = 400  # letters at most: it has two names, and its end is what counts


@dataclass(frozen=True, slots=True)
class AllowedRise:
    """How much more is allowed: a share of what it was, or bytes."""

    text: str
    share: float = 0.0
    bytes: float = NEXT_TO_NOTHING  # by so little a figure may always rise

    def of(self, before: float) -> float:
        """Return by how many bytes a figure may rise."""
        return max(self.share * abs(before), self.bytes)


def compare(arguments: Namespace) -> int:
    """Show both, and judge the second where a limit is given."""
    limit = parse_limit(arguments.fail_over) if arguments.fail_over else None
    paths = arguments.A, arguments.B
    found = [what_is_in(checked_path(path)) for path in paths]
    runs = _records(found, paths)
    snapshots = {
        run.name: each for run, each in zip(runs, found, strict=True) if isinstance(each, Snapshot)
    }
    comparison = of_runs({run.name: [run] for run in runs}, by=arguments.by, snapshots=snapshots)
    a, b = (cell.records[0] for cell in comparison.cells)
    judged = list(judge(a, b, arguments.metric, limit)) if limit else []
    why = f"{a.name} and {b.name} have no such figure of the same device"
    known = [(run.name, device.peak.certainty) for run in (a, b) for device in run.devices]
    inexact = dict.fromkeys(name for name, certainty in known if certainty != "exact")
    if snapshots and judged and inexact:
        judged, why = [], f"the peak of {' and of '.join(inexact)} is not known exactly"
    unfinished = _unfinished(found[1], b)
    if arguments.json:
        say(json.dumps(json_data(_data(comparison, judged, unfinished))))
    else:
        say(markdown(comparison) if arguments.markdown else text(comparison))
    if limit is None:
        return FINE
    if not judged:
        raise OptionError(f"nothing can be judged: {why}")
    over = [line for is_over, line in judged if is_over]
    lines = unfinished + (over or [line for _, line in judged])
    if arguments.markdown:
        lines = [f"- {for_markdown(line, SENTENCE)}" for line in lines]
    if not arguments.json:
        say("\n" + "\n".join(lines))
    return NO if over or unfinished else FINE


def _data(
    comparison: Comparison, judged: Sequence[tuple[bool, str]], unfinished: Sequence[str]
) -> dict[str, Any]:
    cells = [
        {"name": each.name, "runs": each.runs, "certainty": each.certainty}
        | {"figures": {name: asdict(figure) for name, figure in each.figures.items()}}
        | {name: getattr(each.usual, name) for name in ("at_start", "at_peak", "at_end")}
        | {"changes": each.changes and [asdict(change) for change in each.changes]}
        for each in comparison.cells
    ]
    return {
        "schema": "hfmem.comparison/1",
        "device": comparison.device,
        "baseline": comparison.baseline,
        "cells": cells,
        "sentences": verdicts(comparison),
        "judged": [{"is_over": is_over, "sentence": line} for is_over, line in judged],
        "notes": [*comparison.notes, *unfinished],
    }


def _unfinished(session: Found, run: Record) -> list[str]:
    """Return that a run did not come to its end, if so: its figures are then those of a part."""
    if isinstance(session, Snapshot):
        return []
    outcome = "running" if session.running else "broken off" if session.broken_off else run.outcome
    return [] if outcome == DONE else [f"{run.name} did not finish: {outcome}."]


def parse_limit(given: str) -> AllowedRise:
    """Return the limit that a text says, or raise `OptionError`."""
    allowed = "a percentage such as 2%, or a size such as 100MiB"
    if given.strip().endswith("%"):
        share = parse_share(given, "--fail-over", allowed)
        return AllowedRise(f"{given.strip().rstrip(' %')} %", share=share)
    if given.strip().isdigit():
        raise wrong_value(given, "--fail-over", allowed)
    size = parse_bytes(given, of="--fail-over", allowed=allowed)
    return AllowedRise(format_bytes(size), bytes=size)


def judge(a: Record, b: Record, metric: str, limit: AllowedRise) -> Iterator[tuple[bool, str]]:
    """Yield for each device of both, and each new GPU, whether the second is over the limit, and why."""
    common = [device.key for device in b.devices if a.device(device.key)]
    for device in b.devices:
        other = a.device(device.key)
        if other is None and not (common and ":" in device.key):
            continue
        name, value = _FIGURES[metric](device)
        before = 0.0 if other is None else _FIGURES[metric](other)[1]
        if math.isnan(value - before):
            continue
        share = percent_text(100 * (value / before - 1)) if before >= NEXT_TO_NOTHING else ""
        change = ", ".join(filter(None, (format_bytes(value - before, signed=True), share)))
        is_over = value - before > limit.of(before)
        line = (
            f"{device.key} {name}: {format_bytes(before)} in {a.name}, {format_bytes(value)} in {b.name} "
            f"({change}), {'more than' if is_over else 'within'} the limit of {limit.text}."
        )
        yield is_over, line


def _records(found: Sequence[Found], paths: Sequence[str]) -> list[Record]:
    labels = [each.label if isinstance(each, Session) else "" for each in found]
    files = [stem(Path(path)) for path in paths]
    folders = [Path(path).absolute().parent.name for path in paths]
    # Two runs of one script have the same label: then their files, or the folders of these, name them.
    candidates = labels, files, folders, paths, ("A", "B")
    names = next(two for two in candidates if all(two) and plain(two[0]) != plain(two[1]))
    return [
        record_of(each, whole(each), label=name)
        if isinstance(each, Session)
        else of_stacks(each.stacks.peaks, name)
        for each, name in zip(found, names, strict=True)
    ]
