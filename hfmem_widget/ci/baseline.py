"""The peaks of earlier runs in a file that is kept with the tests: JSON, one line for each test."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hfmem_widget.errors import OptionError
from hfmem_widget.recording.file import read_regular
from hfmem_widget.text import MIB, format_bytes, format_share, plain, wrong_value

FORMAT = 1
NOISE = MIB
"""Bytes by which a peak must differ from its baseline, whatever its share: the allocator's smallest segments
make less."""

MOST_BYTES = 64 << 20
"""The largest baseline that is read; one of 100,000 tests has a tenth of these bytes."""

_PERCENT = re.compile(r"(\d{1,4}(?:\.\d{1,6})?) *%?")

Peaks = dict[str, int]
"""Bytes by the name of the test."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """Peaks by environment, such as ``NVIDIA H200, torch 2.8``, then by test."""

    path: Path
    peaks: Mapping[str, Peaks] = field(default_factory=dict)

    def of(self, environment: str) -> Peaks:
        """Return the peaks that were measured in an environment."""
        return self.peaks.get(environment, {})

    def tests(self) -> set[str]:
        """Return the names of all tests."""
        return {name for peaks in self.peaks.values() for name in peaks}

    def updated(self, measured: Mapping[str, Peaks], gone: Iterable[str]) -> Baseline:
        """Return it with newer peaks, and in their environments without the tests that are gone."""
        left_out = set(gone)
        peaks = dict(self.peaks)
        for environment, newer in measured.items():
            kept = {n: size for n, size in self.of(environment).items() if n not in left_out}
            peaks[environment] = {**kept, **newer}
        return Baseline(self.path, peaks)

    def write(self) -> None:
        """Write it in place of the file; raises `OSError`."""
        content = {"hfmem_baseline": FORMAT, "peaks": self.peaks}
        half_written = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            text = json.dumps(content, indent=1, sort_keys=True)
            half_written.write_text(f"{text}\n", encoding="utf-8")
            half_written.replace(self.path)
        finally:
            half_written.unlink(missing_ok=True)


def read(path: Path, *, may_be_missing: bool = False) -> Baseline:
    """Return the baseline in a file.

    Raises `OptionError` if it cannot be read; the message is one sentence.
    """
    name = plain(path)
    try:
        text = read_regular(path, MOST_BYTES).decode() if os.path.lexists(path) else None
    except OptionError as error:
        raise OptionError(f"the baseline {error}") from None
    except ValueError as error:
        raise OptionError(f"the baseline {name} cannot be read: {plain(error)}") from error
    if text is None:
        if may_be_missing and path.parent.is_dir():
            return Baseline(path)
        how = "create it with --hfmem-update" if path.parent.is_dir() else "its folder is missing"
        raise OptionError(f"there is no baseline {name}; {how}")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or not _are_peaks(content.get("peaks")):
        message = f"{name} is not a baseline; delete it and write a new one with --hfmem-update"
        raise OptionError(message)
    if content.get("hfmem_baseline") != FORMAT:
        raise OptionError(f"{name} has the format of another version of hfmem_widget")
    return Baseline(path, content["peaks"])


def _are_peaks(peaks: Any) -> bool:
    return isinstance(peaks, dict) and all(
        isinstance(each, dict) and all(type(size) is int and size >= 0 for size in each.values())
        for each in peaks.values()
    )


def share_of(tolerance: str) -> float:
    """Return a tolerance such as ``2%`` as a share; raises `OptionError`."""
    match = _PERCENT.fullmatch(tolerance.strip())
    if match is None:
        raise wrong_value(tolerance, "--hfmem-tolerance", "a percentage such as 2% or 0.5%")
    return float(match[1]) / 100


def differs(peak: float, baseline: float, tolerance: float) -> bool:
    """Return whether a peak is higher or lower than its baseline by more than may be."""
    change = abs(peak - baseline)
    return change > baseline * tolerance and change > NOISE


def change_text(peak: float, baseline: float) -> str:
    """Return a peak beside its baseline, such as ``1.06 GiB, 6.2 % above the baseline's 1.00 GiB``."""
    where = "above" if peak > baseline else "below"
    share = f"{format_share(abs(peak - baseline) / baseline)} " if baseline else ""
    return f"{format_bytes(peak)}, {share}{where} the baseline's {format_bytes(baseline)}"
