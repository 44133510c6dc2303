"""The one list of what can be configured."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from hfmem_widget.errors import OptionError
from hfmem_widget.text import DEVICE_KEY, MIB, parse_bytes, plain

SHORTEST_INTERVAL = 0.01
LONGEST_INTERVAL = 3600.0

LEAST_BUDGET = MIB
"""Less is a slip: 20 for 20GiB."""

ADDRESSABLE = 2**63

_SWITCHES = ("chart", "panel", "quiet", "ledger", "resident_peak", "stop", "stacks", "memory_map")


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """How a watch is made.

    Attributes
    ----------
    label : str
        What to call it; shown as plain text.
    interval : float
        Seconds between samples, from 0.01 to 3600.
    devices : tuple of str
        Only these, such as ``("cuda:0", "cpu")``; empty means all.
    chart : bool
        Show a live chart while the cell runs, and a still one afterwards.
    panel : bool
        Let JupyterLab's memory panel open by itself with the first watch of a notebook. Without both
        panel and chart nothing is sent to the page while the cell runs.
    quiet : bool
        Show nothing at all; for use with a name that keeps the session.
    ledger : bool
        Keep exact peaks through the allocator's counters. Without, peaks are lower bounds.
    resident_peak : bool
        Take the exact peak of the resident set by resetting the kernel's mark, which also resets what
        ``resource.getrusage`` calls ``ru_maxrss``.
    budget : float or None
        Bytes, 1 MiB or more; a warning is given once where more than that is allocated on a device.
    stop : bool
        End a Trainer's training at the end of the step in which the budget was crossed.
    stacks : bool
        Record where memory is allocated, and tell what was live at the peak.
    memory_map : bool
        Show how memory lies in what the allocator has reserved.

    Raises
    ------
    OptionError
        If a value is not one of those allowed; the message says which are.
    """

    label: str = ""
    interval: float = 0.1
    devices: tuple[str, ...] = ()
    chart: bool = True
    panel: bool = True
    quiet: bool = False
    ledger: bool = True
    resident_peak: bool = False
    budget: float | None = None
    stop: bool = False
    stacks: bool = False
    memory_map: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", plain(self.label))
        interval = self.interval
        # A bool is an int, and an interval of "True" is a slip.
        if isinstance(interval, bool) or not isinstance(interval, (int, float)):
            raise OptionError(_interval_message(interval))
        if not (math.isfinite(interval) and SHORTEST_INTERVAL <= interval <= LONGEST_INTERVAL):
            raise OptionError(_interval_message(interval))
        object.__setattr__(self, "devices", device_keys(self.devices))
        _check_names(self.devices)
        object.__setattr__(self, "budget", budget_in_bytes(self.budget))
        for name in _SWITCHES:
            value: object = getattr(self, name)
            if not isinstance(value, bool):
                message = f"{name} is True or False, not {plain(repr(value))}"
                raise OptionError(message)
        if self.stop and self.budget is None:
            message = "stop needs a budget to stop at"
            raise OptionError(message)

    def check_devices(self, known: tuple[str, ...]) -> None:
        """Raise `OptionError` if a device was asked for that is not among those `known`."""
        for device in self.devices:
            if device not in known:
                message = f"there is no device {plain(device)!r} here; there is {', '.join(known)}"
                raise OptionError(message)


def budget_in_bytes(budget: object) -> float | None:
    """Return a budget in bytes, given as such or as a size such as "20GiB"; None where there is none.

    Raises
    ------
    OptionError
        If it is neither; the message says what is allowed.
    """
    if budget is None:
        return None
    size = parse_bytes(budget, of="budget") if isinstance(budget, str) else budget
    if (
        isinstance(size, bool)
        or not isinstance(size, (int, float))
        or not LEAST_BUDGET <= size < ADDRESSABLE
    ):
        message = (
            "budget is a size with its unit, such as '20GiB', or a number of bytes, 1 MiB or more; "
            f"not {plain(repr(budget))}"
        )
        raise OptionError(message)
    return size


def device_keys(devices: object) -> tuple[str, ...]:
    """Return the keys of devices, given one by one or in one text, separated by commas; none means all.

    Raises
    ------
    OptionError
        If they are no texts; the message says what is allowed.
    """
    if devices is None:
        return ()
    if isinstance(devices, str):
        return tuple(key.strip() for key in devices.split(",") if key.strip())
    keys = tuple(devices) if isinstance(devices, Iterable) else (devices,)
    for key in keys:
        if not isinstance(key, str):
            message = (
                f"devices are given by name, such as 'cuda:0' or 'cpu', not {plain(repr(key))}"
            )
            raise OptionError(message)
    return keys


def _check_names(devices: Iterable[str]) -> None:
    """Raise `OptionError` for what no device is called anywhere, whichever are there."""
    for device in devices:
        if not DEVICE_KEY.fullmatch(device):
            is_gpu = plain(device).lower().startswith(("gpu", "cuda"))
            hint = (
                "did you mean 'cuda:0'?"
                if is_gpu
                else "they are called 'cpu', 'cuda:0', 'cuda:1' …"
            )
            message = f"there is no device {plain(device)!r}; {hint}"
            raise OptionError(message)


def _interval_message(interval: object) -> str:
    return (
        f"interval is the number of seconds between samples, from {SHORTEST_INTERVAL:g} to "
        f"{LONGEST_INTERVAL:g}, not {plain(interval)}"
    )
