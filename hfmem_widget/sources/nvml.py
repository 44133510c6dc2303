"""Device memory as NVIDIA's driver counts it, of all processes, for every GPU that this process can see.

NVML creates no context and does not initialise CUDA. It is opened at the first reading and stays open:
opening it again and again has caused faults of drivers (go-nvml#152).
"""

import contextlib
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from hfmem_widget.session import Device, Series
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.sources.allocator import Allocator
from hfmem_widget.sources.children import Descendants
from hfmem_widget.sources.counters import AllocatorSource
from hfmem_widget.sources.nvml_gpu import METRICS, Fault, Gpu, code_of, why_closed, why_unread
from hfmem_widget.sources.procfs import PROC, Pool, ProcessIds, process_ids
from hfmem_widget.sources.source import Source
from hfmem_widget.text import plain

RETRY_INTERVAL: Final = 30.0
"""Seconds after a fault before NVML is opened again."""

CHILDREN: Final = Series("cpu", "gpu_children", "child processes on GPUs")
"""The number of descendants of this process that use any GPU; the first series, before those of GPUs."""


class NvmlSource(Source):
    """Device memory, the driver's reserve, this process' share, and the utilisation of each GPU.

    `cuda` knows CUDA's devices, once CUDA is up. Until then `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER`
    are watched in `environ`; CUDA reads them once. Devices on which this process can have no memory are then
    read once a second. `pool` is described at `Gpu`.
    """

    name = "nvml"
    blocks = True

    def __init__(
        self,
        cuda: AllocatorSource | None,
        environ: Mapping[str, str],
        *,
        pool: Callable[[], Pool] | None = None,
        load: Callable[[], Any] = lambda: import_module("pynvml"),
        proc: Path = PROC,
    ) -> None:
        super().__init__()
        self._cuda = cuda or AllocatorSource(Allocator())
        self._pool = pool
        self._environ = environ
        self._load = load
        self._proc = proc
        self._nvml: Any = None
        self._pid = -1
        self._pids = ProcessIds()
        self._retry_at = -math.inf
        self._reopened = False
        self._gpus: list[Gpu] = []
        self._found_by: tuple[object, ...] = ()
        self._cuda_is_up = False

    def read(self, now: float) -> Sequence[float]:
        """Return the values of `series`, in bytes and percent, for every visible GPU."""
        values: list[float] = []
        try:
            if self._is_ready(now) and self._gpus:
                opened = self._cuda.allocator.opened() if self._cuda_is_up else None
                for index, gpu in enumerate(self._gpus):
                    is_idle = opened is not None and index not in opened
                    values += gpu.read_rarely(now) if is_idle else gpu.read(now)
                children = [gpu.children for gpu in self._gpus if gpu.children is not None]
                count = len(frozenset[int]().union(*children)) if children else NOT_AVAILABLE
                values.insert(0, float(count))
                self._explain_process_ids()
        except Exception as error:  # noqa: BLE001  (a source never raises from `read`)
            self._give_up(error, now)
            values = []
        return self._padded(values)

    def driver(self) -> str:
        """Return the driver's version; empty if NVML is not open."""
        return "" if self._nvml is None else str(self._nvml.nvmlSystemGetDriverVersion())

    def close(self) -> None:
        """Shut NVML down; doing so while another thread is inside `read` crashes (nvitop#222)."""
        if self._nvml is not None and self._pid == os.getpid():
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
        self._nvml = None
        self._retry_at = math.inf

    def _is_ready(self, now: float) -> bool:
        if self._nvml is not None and self._pid != os.getpid():
            self._nvml = None  # a forked child: it may neither use nor close the parent's handles
        if self._nvml is None:
            if now < self._retry_at:
                return False
            nvml = self._load()
            nvml.nvmlInit()
            self._nvml, self._pid = nvml, os.getpid()
            self._pids = process_ids(self._proc)
            self._found_by = ()
            self._cuda_is_up = False
        if not self._cuda_is_up:
            self._find()
        return True

    def _give_up(self, error: Exception, now: float) -> None:
        self._nvml = None
        if code_of(error) == Fault.UNINITIALIZED and not self._reopened:
            # Other code has shut NVML down more often than it opened it.
            self._reopened = True
            return
        self._retry_at = now + RETRY_INTERVAL
        self._note(why_closed(error))

    def _find(self) -> None:
        uuids = self._cuda.uuids() or ()
        value = self._environ.get("CUDA_VISIBLE_DEVICES")
        order = self._environ.get("CUDA_DEVICE_ORDER")
        if (uuids, value, order) == self._found_by:
            return
        self._cuda_is_up = bool(uuids) and all(uuids)
        before = self._gpus
        provisional = False
        if self._cuda_is_up:
            self._gpus = [self._named(uuid) for uuid in uuids]
            if any(now.uuid != then.uuid for now, then in zip(self._gpus, before, strict=False)):
                self._note(
                    "CUDA and the driver number the GPUs differently, so device memory was shown under "
                    "other numbers before CUDA was initialised. CUDA_DEVICE_ORDER=PCI_BUS_ID makes both "
                    "agree."
                )
        else:
            self._gpus, provisional = self._visible(value, order)
        self._found_by = (uuids, value, order)
        self.devices = tuple(
            Device(f"cuda:{index}", gpu.name, gpu.uuid, gpu.total, provisional, gpu.shared)
            for index, gpu in enumerate(self._gpus)
        )
        for device, gpu in zip(self.devices, self._gpus, strict=True):
            gpu.label = f"{device.key} ({device.name})"
        # The devices count from cuda:0 without a gap, so new ones come at the end.
        described = len(self.series) // len(METRICS)
        if self.devices:
            self.series = self.series or (CHILDREN,)
        self.series += tuple(
            Series(device.key, *metric) for device in self.devices[described:] for metric in METRICS
        )

    def _visible(self, value: str | None, order: str | None) -> tuple[list[Gpu], bool]:
        cards = self._cards()
        if names_instances(value):
            parts = [part for card in cards for part in self._instances(card)]
            return [parts[at] for at in visible(value, [part.uuid for part in parts])], False
        chosen = [cards[at] for at in visible(value, [card.uuid for card in cards])]
        # Of a split card, CUDA shows an instance and never the card.
        gpus = [next(iter(self._instances(card)), card) for card in chosen]
        provisional = gpus != chosen or is_provisional(value, order, [card.name for card in cards])
        return gpus, provisional

    def _cards(self) -> list[Gpu]:
        cards = []
        for index in range(self._nvml.nvmlDeviceGetCount()):
            label = f"GPU {index}"
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            except self._nvml.NVMLError as error:
                # CUDA does not show a card that this process may not open either (another batch job's).
                if code_of(error) == Fault.NO_PERMISSION:
                    continue
                self._note(why_unread(label, error))
                handle = None
            cards.append(self._gpu(handle, label))
        return cards

    def _instances(self, card: Gpu) -> list[Gpu]:
        nvml, instances = self._nvml, []
        with contextlib.suppress(nvml.NVMLError):  # most cards cannot be split
            if card.handle is None or not nvml.nvmlDeviceGetMigMode(card.handle)[0]:
                return []
            for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(card.handle)):
                with contextlib.suppress(nvml.NVMLError):  # a slot may be empty
                    handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(card.handle, index)
                    instances.append(self._gpu(handle, f"MIG instance {index} of {card.label}"))
        return instances

    def _named(self, uuid: str) -> Gpu:
        # Not every torch reports whether a device is a MIG instance, so both prefixes are tried.
        for name in (uuid, "MIG-" + uuid.removeprefix("GPU-")):
            with contextlib.suppress(self._nvml.NVMLError):
                return self._gpu(self._nvml.nvmlDeviceGetHandleByUUID(name), uuid)
        # NVML does not know Jetson's by their UUIDs (nvbandwidth#55).
        if not self._cuda.shares(uuid):
            self._note(
                f"CUDA uses {plain(uuid)}, which the driver's library does not know: device in use is not "
                "shown for it, only what torch allocates."
            )
        return self._gpu(None, uuid)

    def _gpu(self, handle: Any, label: str) -> Gpu:
        of_card = self._nvml, handle, label, self._pids, self._note
        descendants = Descendants(self._proc)
        return Gpu(*of_card, cuda=self._cuda, pool=self._pool, descendants=descendants)

    def _explain_process_ids(self) -> None:
        is_unexplained = self._cuda_is_up and any(gpu.unexplained for gpu in self._gpus)
        if is_unexplained and not any(gpu.listed for gpu in self._gpus):
            self._note(
                "The driver lists this process under an unknown id, as in some containers, so memory that it "
                "uses outside torch cannot be separated from that of other processes."
            )


UUID_PREFIXES = ("GPU-", "MIG-")

# The driver reads ordinals as strtoul does: "1gpu2" is 1.
_LEADING_INTEGER = re.compile(r"[+-]?[0-9]{1,9}")


def names_instances(value: str | None) -> bool:
    """Return whether a `CUDA_VISIBLE_DEVICES` names MIG instances, which are listed apart from the GPUs."""
    return value is not None and value.startswith("MIG-")


def visible(value: str | None, uuids: Sequence[str]) -> tuple[int, ...]:
    """Return the visible devices, as positions in `uuids`, in CUDA's order.

    The rules are the CUDA driver's: calling the driver would forbid the user's own code to fork. The first
    entry that names no device, or more than one, ends the list; a device named twice empties it.
    `value` is `CUDA_VISIBLE_DEVICES`, None if it is not set, which shows all. `uuids` are the machine's
    devices in NVML's order, with their prefixes: GPUs, or MIG instances if `names_instances(value)`.
    """
    if value is None:
        return tuple(range(len(uuids)))
    if value.startswith(UUID_PREFIXES):
        return _by_uuid(value, uuids)
    return _by_ordinal(value, len(uuids))


def is_provisional(value: str | None, order: str | None, names: Sequence[str]) -> bool:
    """Return whether CUDA and NVML may number these GPUs differently; they never do if all are of one model.

    CUDA numbers the fastest first unless `CUDA_DEVICE_ORDER` is ``PCI_BUS_ID``, NVML by PCI bus.
    """
    by_ordinal = value is None or not value.startswith(UUID_PREFIXES)
    return by_ordinal and order != "PCI_BUS_ID" and len(set(names)) > 1


def _by_uuid(value: str, uuids: Sequence[str]) -> tuple[int, ...]:
    entries = list(takewhile(lambda entry: entry.startswith(value[:4]), value.split(",")))
    matches = [[at for at, uuid in enumerate(uuids) if uuid.startswith(entry)] for entry in entries]
    chosen = [matching[0] for matching in takewhile(lambda matching: len(matching) == 1, matches)]
    if len(set(entries)) < len(entries) or len(set(chosen)) < len(chosen):
        return ()
    # A process can use one MIG instance only: CUDA shows the first one named.
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
