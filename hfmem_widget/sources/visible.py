"""Which GPUs this process sees, from `CUDA_VISIBLE_DEVICES`, without asking CUDA.

Asking CUDA would initialise the driver and forbid the user's own code to fork. The rules are those of
`torch.cuda._parse_visible_devices`, which follow the CUDA driver's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile

UUID_PREFIXES = ("GPU-", "MIG-")

# The driver reads ordinals as strtoul does: "1gpu2" is 1.
_LEADING_INTEGER = re.compile(r"[+-]?[0-9]{1,9}")


def names_instances(value: str | None) -> bool:
    """Return whether a `CUDA_VISIBLE_DEVICES` names MIG instances, which are listed apart from the GPUs."""
    return value is not None and value.startswith("MIG-")


def visible(value: str | None, uuids: Sequence[str]) -> tuple[int, ...]:
    """Return which devices are visible, as positions in `uuids`, in the order in which CUDA numbers them.

    The first entry that names no device, or more than one, ends the list; a device named twice empties it.
    `value` is `CUDA_VISIBLE_DEVICES`, None where it is not set, which shows all. `uuids` are the machine's
    devices in NVML's order, with their prefixes: GPUs, or MIG instances if `names_instances(value)`.
    """
    if value is None:
        return tuple(range(len(uuids)))
    if value.startswith(UUID_PREFIXES):
        return _by_uuid(value, uuids)
    return _by_ordinal(value, len(uuids))


def is_provisional(value: str | None, order: str | None, names: Sequence[str]) -> bool:
    """Return whether ordinals may mean other GPUs to CUDA than they do to NVML.

    CUDA counts the fastest first unless `CUDA_DEVICE_ORDER` says ``PCI_BUS_ID``, NVML by PCI bus; among
    GPUs of one make both come to the same.
    """
    by_ordinal = value is None or not value.startswith(UUID_PREFIXES)
    return by_ordinal and order != "PCI_BUS_ID" and len(set(names)) > 1


def _by_uuid(value: str, uuids: Sequence[str]) -> tuple[int, ...]:
    entries = list(takewhile(lambda entry: entry.startswith(value[:4]), value.split(",")))
    matches = [[at for at, uuid in enumerate(uuids) if uuid.startswith(each)] for each in entries]
    chosen = [matching[0] for matching in takewhile(lambda matching: len(matching) == 1, matches)]
    if len(set(entries)) < len(entries) or len(set(chosen)) < len(chosen):
        return ()
    # A process can use one MIG instance only; CUDA shows the first that is named.
    return tuple(chosen[:1] if names_instances(value) else chosen)


def _by_ordinal(value: str, count: int) -> tuple[int, ...]:
    chosen: list[int] = []
    for entry in value.split(","):
        match = _LEADING_INTEGER.match(entry.strip())
        ordinal = int(match[0]) if match else -1
        if ordinal in chosen:
            return ()
        if ordinal < 0:
            break
        chosen.append(ordinal)
    return tuple(takewhile(lambda ordinal: ordinal < count, chosen))
