"""What the whole run has to say at its end: the table, the baseline and its update."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from msgspec import Meta, Struct

from hfmem_widget.ci.measure import HOST, DeviceCost
from hfmem_widget.errors import OptionError
from hfmem_widget.guard import entry
from hfmem_widget.recording.file import read_regular
from hfmem_widget.text import MIB, format_bytes, format_counted, format_share, plain
from hfmem_widget.view.table import aligned

FORMAT = 1
NOISE = MIB
"""Bytes by which a peak must differ from its baseline, whatever its share: the allocator's smallest segments
make less."""

MOST_BYTES = 64 << 20
"""The largest baseline that is read; one of 100,000 tests has a tenth of these bytes."""

Peaks = dict[str, int]
"""Bytes by the name of the test."""

MOST_ROWS = 10
MOST_NAMES = 5

NO_GPU = (
    "No GPU was used: these figures are of the process' private memory, read at each test's start and "
    "end alone."
)


@dataclass(frozen=True, slots=True)
class Baseline:
    """Peaks by environment, such as ``NVIDIA H200, torch 2.8``, then by test."""

    path: Path
    peaks: Mapping[str, Peaks] = field(default_factory=dict)

    def of(self, environment: str) -> Peaks:
        """Return the peaks that were measured in an environment."""
        return self.peaks.get(environment, {})

    def write(self, measured: Mapping[str, Peaks], gone: Collection[str]) -> None:
        """Write newer peaks of these environments, without the tests that are gone; raises `OSError`."""
        peaks = dict(self.peaks)
        for environment, newer in measured.items():
            kept = {n: size for n, size in self.of(environment).items() if n not in gone}
            peaks[environment] = {**kept, **newer}
        content = {"hfmem_baseline": FORMAT, "peaks": peaks}
        half_written = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            text = json.dumps(content, indent=1, sort_keys=True)
            half_written.write_text(f"{text}\n", encoding="utf-8")
            half_written.replace(self.path)
        finally:
            half_written.unlink(missing_ok=True)


class _File(Struct):
    hfmem_baseline: int
    peaks: dict[str, dict[str, Annotated[int, Meta(ge=0)]]]


def read(path: Path, *, may_be_missing: bool = False) -> Baseline:
    """Return the baseline in a file, or raise `OptionError` with one sentence."""
    name = plain(path)
    if not os.path.lexists(path):
        if may_be_missing and path.parent.is_dir():
            return Baseline(path)
        how = "create it with --hfmem-update" if path.parent.is_dir() else "its folder is missing"
        raise OptionError(f"there is no baseline {name}; {how}")
    try:
        content = msgspec.json.decode(read_regular(path, MOST_BYTES), type=_File)
    except OptionError as error:
        raise OptionError(f"the baseline {error}") from None
    except (ValueError, RecursionError):
        message = f"{name} is not a baseline; delete it and write a new one with --hfmem-update"
        raise OptionError(message) from None
    if content.hfmem_baseline != FORMAT:
        raise OptionError(f"{name} has the format of another version of hfmem_widget")
    return Baseline(path, content.peaks)


def differs(peak: float, baseline: float, tolerance: float) -> bool:
    """Return whether a peak is higher or lower than its baseline by more than may be."""
    change = abs(peak - baseline)
    return change > baseline * tolerance and change > NOISE


def change_text(peak: float, baseline: float) -> str:
    """Return a peak beside its baseline, such as ``1.06 GiB, 6.2 % above the baseline's 1.00 GiB``."""
    where = "above" if peak > baseline else "below"
    share = f"{format_share(abs(peak - baseline) / baseline)} " if baseline else ""
    return f"{format_bytes(peak)}, {share}{where} the baseline's {format_bytes(baseline)}"


class Summary:
    """Takes the reports of all tests."""

    def __init__(self, config: pytest.Config, baseline: Baseline | None, tolerance: float) -> None:
        self._config = config
        self._baseline = baseline
        self._tolerance = tolerance
        self._records: dict[str, DeviceCost] = {}
        self._passed: set[str] = set()
        self._faults: set[str] = set()
        self._unrecorded: dict[str, str] = {}
        self.gone: set[str] = set()  # tests of the baseline; of xdist's, what each worker knows
        self._done = ""

    def name_of(self, node_id: str) -> str:
        """Return the name of a test; xdist may put its group behind it."""
        at = node_id.rfind("@", node_id.rfind("::") + 1)
        is_grouped = self._config.getoption("dist", "no") == "loadgroup" and at > node_id.rfind("]")
        return node_id[:at] if is_grouped else node_id

    def take(self, report: pytest.TestReport) -> None:
        """Keep what the report of a call says; the last one of a test counts."""
        name, record = self.name_of(report.nodeid), DeviceCost.read(report.user_properties)
        if any(each[0] == "hfmem_fault" for each in report.user_properties):
            self._faults.add(name)
        if why := dict(report.user_properties).get("hfmem_unrecorded"):
            self._unrecorded[name] = plain(why)
        if record is not None:
            self._records[name] = record
            (self._passed.add if report.passed else self._passed.discard)(name)

    def look_for_gone(self, node_ids: Sequence[str]) -> None:
        """Find the tests of the baseline that are not there any more, given all that were collected."""
        option = self._config.option
        if self._baseline is None:
            return
        # Of a file that is there, only if it was collected whole.
        is_whole = not getattr(option, "lf", False) and not any(
            "::" in a for a in self._config.args
        )
        files = {_file(node_id) for node_id in node_ids} if is_whole else set()
        tests = {name for peaks in self._baseline.peaks.values() for name in peaks}
        there = {file for file in map(_file, tests) if (self._config.rootpath / file).exists()}
        if there:  # else the names are those of another root
            missing = tests - set(map(self.name_of, node_ids))
            self.gone = {
                each for each in missing if _file(each) in files or _file(each) not in there
            }

    @entry(otherwise=lambda *_: False)
    def update(self, session: pytest.Session) -> bool:
        """Write the baseline; return whether that was done."""
        if self._baseline is None:
            return True
        measured: dict[str, Peaks] = {}
        for name, record in self._comparable().items():
            if name in self._passed:
                measured.setdefault(record.environment, {})[name] = round(record.peak)
        was_whole = session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}
        path, count = plain(self._baseline.path), sum(map(len, measured.values()))
        try:
            if measured:
                self._baseline.write(measured, self.gone if was_whole else ())
        except OSError as error:
            self._done = f"The baseline {path} could not be written: {plain(error)}."
            return False
        self._done = (
            f"{format_counted(count, 'peak')} written to {path}. Look at the difference before you commit it."
            if measured
            else f"Nothing was written to {path}: no test that passed used a GPU."
        )
        return True

    def show(self, to: pytest.TerminalReporter) -> None:
        """Write all there is to say; nothing where tests are only listed."""
        if to.config.option.collectonly:
            return
        lines = [*self._table(), *self._about_baseline()]
        if self._faults:
            lines.append(
                _named("could not be measured, because of a fault in hfmem_widget", self._faults)
            )
        if self._unrecorded:
            lines += [_named("could not be recorded", set(self._unrecorded))]
            lines += sorted(set(self._unrecorded.values()))[:MOST_NAMES]
        if lines:
            to.section("GPU memory of tests")
            for line in lines:
                to.line(line)

    def _comparable(self) -> dict[str, DeviceCost]:
        return {
            name: each
            for name, each in self._records.items()
            if each.environment and each.certainty == "exact" and each.peak > 0
        }

    def _table(self) -> list[str]:
        if not self._config.option.hfmem:
            return []
        used = {name: each for name, each in self._records.items() if each.device != HOST}
        used = {name: each for name, each in used.items() if each.peak > 0 or each.left > 0}
        shown = used or {n: e for n, e in self._records.items() if e.device == HOST}
        if not shown:
            return ["No test used a GPU." if self._records else "No test was measured."]
        ordered = sorted(shown.items(), key=lambda each: (-each[1].peak, each[0]))
        rows = [["peak", "left", "reserved", "device", "test"]]
        for name, each in ordered[:MOST_ROWS]:
            peak = f"{'' if each.certainty == 'exact' else '≥ '}{format_bytes(each.peak)}"
            left = format_bytes(each.left, signed=True)
            failed = "" if name in self._passed else "  (did not pass)"
            test = plain(name, 300) + failed
            rows.append([peak, left, format_bytes(each.reserved), each.device, test])
        environments = sorted({each.environment for each in shown.values() if each.environment})
        more = len(ordered) - MOST_ROWS
        return [
            *([] if used else [NO_GPU]),
            *aligned(rows, {3, 4}).splitlines(),
            *([f"… and {format_counted(more, 'test')} with less"] if more > 0 else []),
            "Peak and left are counted above what was allocated when the test's call began.",
            *environments,
        ]

    def _about_baseline(self) -> list[str]:
        baseline = self._baseline
        if baseline is None:
            return []
        if self._config.option.hfmem_update:
            return [self._done] if self._done else []
        path, measured = plain(baseline.path), self._comparable()
        there = {name: baseline.of(each.environment) for name, each in measured.items()}
        baselines = {name: peaks[name] for name, peaks in there.items() if name in peaks}
        lower = [
            f"  {plain(name)}: {change_text(measured[name].peak, before)}"
            for name, before in sorted(baselines.items())
            if measured[name].peak < before
            and differs(measured[name].peak, before, self._tolerance)
        ]
        environments = {each.environment for each in measured.values()}
        listed = "; ".join(sorted(baseline.peaks)) or "none"
        new = {name for name, peaks in there.items() if peaks and name not in peaks}
        inexact = {n for n, e in self._records.items() if e.environment and e.certainty != "exact"}
        groups = {
            "not in the baseline; add with --hfmem-update": new,
            "not compared, because peaks are not exact": inexact,
            "in the baseline that no longer exist; --hfmem-update removes them": self.gone,
        }
        return [
            f"{format_counted(len(baselines), 'peak')} compared with the baseline {path}."
            if measured
            else f"Nothing was compared with the baseline {path}: no test used a GPU.",
            *(
                f"The baseline has no peaks of {each}, but of: {listed}. Add them with --hfmem-update."
                for each in sorted(environments - baseline.peaks.keys())
            ),
            *(["Lower than the baseline; --hfmem-update keeps that:"] if lower else []),
            *lower,
            *(_named(what, names) for what, names in groups.items() if names),
        ]


def _named(what: str, names: set[str]) -> str:
    few = sorted(names)[:MOST_NAMES]
    more = f" and {len(names) - len(few)} more" if len(names) > len(few) else ""
    return f"{format_counted(len(names), 'test')} {what}: {', '.join(map(plain, few))}{more}"


def _file(node_id: str) -> str:
    return node_id.partition("::")[0]
