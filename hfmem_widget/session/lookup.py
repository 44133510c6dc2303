"""What there is, for who asks for a series by a name that there is not."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from hfmem_widget.errors import OptionError
from hfmem_widget.session.model import ROLES, Device, Series
from hfmem_widget.session.series import HELD
from hfmem_widget.text import DEVICE_KEY, plain

MAY_COME = frozenset({*ROLES, *HELD})
"""The metrics that any device may yet have a series for."""


def check_series(
    key: str, devices: Sequence[Device], series: Sequence[Series], *, running: bool
) -> None:
    """Accept the key of a series that there is not, if it may still come.

    Raises
    ------
    OptionError
        If it cannot come; the message says what there is.
    """
    device, _, metric = key.partition("/")
    metrics = [one.metric for one in series if one.device == device]
    if metrics and not metric:
        own = ", ".join(f"{device}/{one}" for one in metrics)
        message = f"{plain(device)!r} is a device; name one of its series: {own}"
        raise OptionError(message)
    if device not in {one.key for one in devices}:
        if running and DEVICE_KEY.fullmatch(device) and metric in MAY_COME:
            return
        there = f"device {plain(device)!r}", [one.key for one in devices]
    elif metric not in MAY_COME:
        there = f"{plain(metric)!r} of {device}", metrics
    else:
        return
    raise OptionError(_no_series(key, *there, (one.key for one in series)))


def _no_series(key: str, what: str, there: Sequence[str], known: Iterable[str]) -> str:
    near = difflib.get_close_matches(plain(key), list(known), n=3, cutoff=0.7)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    return f"this session has no {what}; it has {', '.join(there) or 'read nothing yet'}{hint}"
