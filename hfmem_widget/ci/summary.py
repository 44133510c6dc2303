"""What the whole run has to say at its end: the table, the baseline and its update."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import pytest

from hfmem_widget.ci.baseline import Baseline, Peaks, change_text, differs
from hfmem_widget.ci.measure import HOST, DeviceCost
from hfmem_widget.guard import entry
from hfmem_widget.text import format_bytes, format_counted, plain
from hfmem_widget.view.table import aligned

MOST_ROWS = 10
MOST_NAMES = 5

NO_GPU = (
    "No GPU was used: these figures are of the process' private memory, read at each test's start and "
    "end alone."
)


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
        self._gone: set[str] = set()
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
        tests = self._baseline.tests()
        there = {file for file in map(_file, tests) if (self._config.rootpath / file).exists()}
        if there:  # else the names are those of another root
            missing = tests - set(map(self.name_of, node_ids))
            self._gone = {
                each for each in missing if _file(each) in files or _file(each) not in there
            }

    def hand_over(self, output: MutableMapping[str, Any]) -> None:
        """Give what only this worker knows to the process that writes the summary."""
        output["hfmem_gone"] = sorted(self._gone)

    def take_over(self, output: Mapping[str, Any]) -> None:
        """Take what a worker gave."""
        self._gone.update(output.get("hfmem_gone", ()))

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
        updated = self._baseline.updated(measured, self._gone if was_whole else ())
        path, count = plain(self._baseline.path), sum(map(len, measured.values()))
        try:
            if measured:
                updated.write()
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
            "in the baseline that do not exist any more; --hfmem-update removes them": self._gone,
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
