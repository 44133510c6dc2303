"""GPUs that share the CPU's memory, watched from one end to the other on stand-ins of owners' figures."""

import math
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

import hfmem_widget
from hfmem_widget import sources
from hfmem_widget.analysis.facts import Facts, facts_of
from hfmem_widget.features.fit import room
from hfmem_widget.features.oom.observer import OBSERVER
from hfmem_widget.monitor.shared import release_monitor
from hfmem_widget.session import Session
from hfmem_widget.sources import torch_cuda
from hfmem_widget.sources.procfs import LinuxMemory
from hfmem_widget.view.card import card_bundle
from hfmem_widget.view.wire.protocol import describe
from tests.data.unified import (
    CACHED,
    GIB,
    MIB,
    N1X,
    OF_ONE_PROCESS,
    SPARK,
    STRIX_HALO,
    STRIX_HALO_CARVED,
    Posted,
    make_machine,
)
from tests.fakes.accelerators import mps, rocm
from tests.fakes.nvml import FakeGpu, FakeNvml
from tests.fakes.torch_cuda import FakeAllocator, FakeTorch, OutOfMemoryError

UUID = "GPU-00000000-fake"
NO_NVML = FakeNvml(init_fault=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
DISCRETE = Posted(
    "an RTX 4090, not posted", "NVIDIA RTX 4090", 64 * GIB, 50 * GIB, 20 * GIB, 24 * GIB, 24 * GIB, False
)  # fmt: skip


class Machine:
    """A process on a machine as it was posted; its torch is not initialised yet."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, posted: Posted) -> None:
        self.folder, self.patch, self.posted = folder, patch, posted
        self.memory = FakeAllocator(initialized=False)
        (pool,) = self.memory.pools
        pool.name, pool.uuid = posted.name, UUID.removeprefix("GPU-")
        pool.total = posted.torch_total
        pool.integrated = posted.integrated
        unsupported = {"MemoryInfo": pynvml.NVML_ERROR_NOT_SUPPORTED}
        sizes: dict[str, Any] = {"total": posted.nvml_total or 0, "used": 200 * MIB, "reserved": 0}
        faults = {} if posted.nvml_total else unsupported
        self.gpu = FakeGpu(name=posted.name, uuid=UUID, faults=faults, **sizes)
        self.now()
        room.opened_sources.cache_clear()
        for module in (sources, sources.host):
            patch.setattr(module, "find_memory", lambda: LinuxMemory(folder, folder / "cgroup"))
        self.has_torch(FakeTorch(self.memory))
        self.has_nvml(FakeNvml([self.gpu]))
        patch.setattr(OBSERVER, "settled", False)
        patch.setattr(OBSERVER, "_allocators", sources.open_allocators())

    def now(self, *, stalled: float = 0.0, swap: int = 0, available: int | None = None) -> None:
        """Let the kernel say something else from now on."""
        free = self.posted.available if available is None else available
        make_machine(self.folder, replace(self.posted, available=free), stalled=stalled, swap=swap)

    def has_torch(self, torch: Any) -> None:
        self.patch.setitem(sys.modules, "torch", torch)

    def has_nvml(self, nvml: Any) -> None:
        self.patch.setitem(sys.modules, "pynvml", nvml)

    def allocate(self, size: int, context: int = 0) -> None:
        """Have the user's code take bytes, of which NVML tells with what CUDA takes itself."""
        self.memory.initialized = True
        self.memory.alloc(size)
        self.gpu.processes["Compute"] = [(os.getpid(), float(size + context))]

    def watched(self, size: int = 0, context: int = 0) -> Session:
        """Return a cell that takes so many bytes."""
        with hfmem_widget.watch("cell", quiet=True, interval=60.0) as session:
            if size:
                self.allocate(size, context)
        return session


@pytest.fixture
def machine(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Machine]:
    yield Machine(tmp_path, monkeypatch, request.param)
    room.opened_sources.cache_clear()


def on(posted: Posted) -> pytest.MarkDecorator:
    """Have a test run on a machine as it was posted."""
    return pytest.mark.parametrize("machine", [posted], indirect=True, ids=[posted.name])


def parts_of(session: Session) -> dict[str, float]:
    return {part.name: part.bytes for part in session.anatomy().parts}


def facts_in(session: Session) -> Facts:
    (facts,) = facts_of(session, session.spans[0])
    return facts


def text_of(session: Session) -> str:
    return card_bundle(session, session.spans[0], with_chart=True)["text/html"].replace("\xa0", " ")


@on(CACHED)
def test_all_of_the_machine_is_one_stack(machine: Machine) -> None:
    """Torch's memory, CUDA's, this process' on the CPU, the rest, page cache and what is free: no more.

    CUDA says that 41.52 GiB are free; what the kernel can give is 115.65.
    """
    session = machine.watched(2 * GIB, 500 * MIB)
    gpu, parts = session.devices[0], parts_of(session)
    used = session.latest("cuda:0/device_used")

    assert gpu.shared == gpu.total == CACHED.total
    assert gpu.total - used == pytest.approx(CACHED.available, abs=1024)

    assert sum(parts.values()) == pytest.approx(CACHED.total)
    assert (parts["context"], parts["on_cpu"]) == (500 * MIB, 2 * GIB)
    assert parts["page_cache"] == pytest.approx(CACHED.available - CACHED.free)
    assert parts["free"] == pytest.approx(CACHED.free)


@on(CACHED)
def test_swap_is_in_no_part_and_in_a_note(machine: Machine) -> None:
    """Swap is on a disk."""
    machine.now(swap=3 * GIB)
    anatomy = machine.watched(GIB).anatomy()

    assert any("3.00 GiB of swap is in use" in note for note in anatomy.notes)
    assert sum(part.bytes for part in anatomy.parts) == pytest.approx(CACHED.total)


@on(SPARK)
def test_the_card_says_whose_memory_it_is_and_what_is_free(machine: Machine) -> None:
    """The total of nvitop#208, and what was available there; the peak is the allocator's own, and exact."""
    session = machine.watched(GIB, 500 * MIB)
    text, peak = text_of(session), session.spans[0].peaks["cuda:0/allocated"]

    assert "memory shared with the CPU 121.7 GiB, 113.1 free at the end" in text
    assert "this process 3.49" in text
    assert "rest of the machine" in text
    assert "other processes" not in text
    assert (peak.value, peak.certainty) == (GIB, "exact")
    assert [one.get("shared", False) for one in describe(session)["devices"]] == [True, False]


@on(SPARK)
def test_headroom_is_what_the_kernel_can_give(machine: Machine) -> None:
    """Memory that was reserved at the peak is in use by then."""
    facts = facts_in(machine.watched(GIB))

    assert facts.headroom == SPARK.available
    assert math.isfinite(facts.process)


@on(SPARK)
def test_what_nvml_lists_of_this_process_is_its_own(machine: Machine) -> None:
    """Allocating 512 MiB more raised NVML's figure by as much; what is resident comes on top."""
    before, after = OF_ONE_PROCESS
    machine.allocate(before)
    machine.gpu.processes["Compute"] = [(os.getpid(), float(after))]
    session = machine.watched()

    assert session.latest("cuda:0/process") == after + 2 * GIB
    assert session.latest("cuda:0/context") == after - session.latest("cuda:0/reserved")


@on(SPARK)
def test_what_runs_on_the_cpu_is_not_told_of_the_gpu(machine: Machine) -> None:
    """A cell that loads data there fills the machine, and says nothing of cuda:0."""
    with hfmem_widget.watch("cell", quiet=True, interval=60.0) as session:
        machine.now(available=SPARK.available - 20 * GIB)

    assert session.latest("cuda:0/device_used") > 20 * GIB
    assert "cuda:0" not in text_of(session)


@on(SPARK)
def test_before_cuda_is_up_name_and_answer_tell(machine: Machine) -> None:
    """NVML has no memory figures for a GB10: the machine's are shown, and no note says that they are not."""
    session = machine.watched()

    assert session.devices[0].shared == SPARK.total
    assert session.latest("cuda:0/device_used") == SPARK.total - SPARK.available
    assert not [note for note in session.notes if "memory figures" in note]


@on(replace(SPARK, name="NVIDIA Unheard-of", integrated=False))
def test_a_figure_that_is_missing_makes_no_device_unified(machine: Machine) -> None:
    """With vGPU, WSL or MIG CUDA calls the device discrete: nothing is claimed, and a note says so."""
    session = machine.watched(GIB)

    assert session.devices[0].shared == 0
    assert math.isnan(session.latest("cuda:0/device_used"))
    assert any("reports no memory figures" in note for note in session.notes)


@on(replace(DISCRETE, name="NVIDIA GH200 480GB", torch_total=95 * GIB, nvml_total=96 * GIB))
def test_a_coherent_gpu_with_memory_of_its_own_is_discrete(machine: Machine) -> None:
    """GH200 shares addresses with its CPU, not memory, and CUDA does not call it integrated."""
    session = machine.watched(GIB)

    assert (session.devices[0].shared, session.devices[0].total) == (0, 96 * GIB)
    assert session.latest("cuda:0/device_used") == 200 * MIB
    assert "shared with the CPU" not in text_of(session)


@on(DISCRETE)
def test_a_discrete_gpu_has_the_parts_that_it_had(machine: Machine) -> None:
    """None of the machine's parts is among them, and no device on the page shares its memory."""
    session = machine.watched(GIB, 500 * MIB)

    assert not parts_of(session).keys() & {"on_cpu", "page_cache"}
    assert all("shared" not in device for device in describe(session)["devices"])


@on(N1X)
def test_a_carve_out_is_not_taken_for_the_pool(machine: Machine) -> None:
    """Nvidia-smi has 8,128 MiB there, CUDA 46,477, and the machine 54.2 GiB: the last are the pool."""
    session = machine.watched(GIB)

    assert (session.devices[0].total, session.devices[0].shared) == (N1X.total, N1X.torch_total)
    assert facts_in(session).headroom == N1X.available


@on(SPARK)
def test_a_groups_limit_does_not_count_what_cuda_takes(machine: Machine) -> None:
    """12 GiB of CUDA's went past a limit of 8 (model-serving-minefield#57): the pool is the machine's."""
    group = machine.folder / "cgroup"
    group.mkdir()
    (machine.folder / "self" / "cgroup").write_text("0::/")
    (group / "memory.max").write_text(str(8 * GIB))
    (group / "memory.current").write_text(str(GIB))
    session = machine.watched(12 * GIB)

    assert [device.total for device in session.devices] == [SPARK.total, 8 * GIB]
    assert session.latest("cuda:0/device_used") == SPARK.total - SPARK.available


@pytest.mark.parametrize("nvml", ["none", "unknown UUID"])
@on(replace(SPARK, name="Orin (nvgpu)"))
def test_jetsons_need_no_nvml(machine: Machine, nvml: str) -> None:
    """A Jetson has no NVML, or one that does not know the device by its UUID (nvbandwidth#55)."""
    other = FakeNvml([replace(machine.gpu, uuid="GPU-other")])
    machine.has_nvml(NO_NVML if nvml == "none" else other)
    session = machine.watched(GIB)
    parts = parts_of(session)

    assert session.latest("cuda:0/device_used") == SPARK.total - SPARK.available
    assert parts["on_cpu"] == 2 * GIB
    assert sum(parts.values()) == pytest.approx(SPARK.total)
    assert not [note for note in session.notes if "does not know" in note]


@pytest.mark.parametrize(
    ("machine", "is_shared"), [(STRIX_HALO, True), (STRIX_HALO_CARVED, False)], indirect=["machine"]
)
def test_an_apu_shares_what_is_not_carved_out(machine: Machine, is_shared: bool) -> None:
    """HIP calls both integrated; the driver says how much the firmware has carved out."""
    assert machine.posted.carved_out is not None
    card = machine.folder / "0000:c6:00.0"
    card.mkdir()
    (card / "mem_info_vram_total").write_text(f"{machine.posted.carved_out}\n")
    machine.patch.setattr(torch_cuda, "PCI", machine.folder)
    machine.has_torch(rocm(machine.memory))
    machine.has_nvml(NO_NVML)
    session = machine.watched(GIB)
    gpu, facts = session.devices[0], facts_in(session)

    assert bool(gpu.shared) is is_shared
    assert gpu.total == (STRIX_HALO.total if is_shared else STRIX_HALO_CARVED.torch_total)
    # Never more than HIP's own total, although it called more free.
    assert 0 < facts.headroom <= machine.posted.torch_total - GIB


@on(replace(SPARK, name="Apple M4 Max"))
def test_on_macos_the_footprint_has_what_is_on_the_gpu(machine: Machine) -> None:
    """Memory on the GPU is not counted twice."""
    machine.memory.device_type = "mps"
    machine.has_torch(mps(machine.memory))
    machine.has_nvml(NO_NVML)
    memory = LinuxMemory(machine.folder, machine.folder / "cgroup")
    read = memory.pool
    vars(memory)["pool"] = lambda: read()._replace(own=5.0 * GIB, is_all=True)
    machine.patch.setattr(sources, "find_memory", lambda: memory)
    with hfmem_widget.watch("cell", quiet=True, interval=60.0) as session:
        machine.memory.initialized = True
        sys.modules["torch"].come_up()
        machine.memory.alloc(4 * GIB)
    parts = parts_of(session)

    assert session.latest("mps:0/process") == 5 * GIB
    assert parts["on_cpu"] == GIB
    assert sum(parts.values()) == pytest.approx(SPARK.total)


@on(CACHED)
def test_memfit_has_the_same_room(machine: Machine) -> None:
    """The room is the same before CUDA is up and after, and no byte counts for both GPU and CPU."""
    before, _ = room.rooms()
    machine.allocate(GIB)
    after, note = room.rooms()

    assert [each.device for each in before] == [each.device for each in after] == ["cuda:0"]
    assert before[0].free == after[0].free == CACHED.available
    assert note == ""
    assert list(hfmem_widget.max_memory()) == [0]


@on(N1X)
def test_nothing_can_have_more_than_cuda(machine: Machine) -> None:
    """Neither a cell nor `%memfit`, though of an idle machine more is available than CUDA's total."""
    machine.now(available=53 * GIB)
    facts = facts_in(machine.watched(GIB))
    (only,), _ = room.rooms()

    assert facts.headroom == only.free == N1X.torch_total - GIB


def ran_out(machine: Machine, size: int) -> Session:
    """Return a cell that holds 2 GiB, and could not have some more."""
    sessions = []

    def run() -> None:
        with hfmem_widget.watch("cell", quiet=True, interval=60.0) as session:
            sessions.append(session)
            machine.allocate(2 * GIB)
            machine.memory.pools[0].total = 2 * GIB  # where cudaMalloc fails
            machine.memory.alloc(size)

    with pytest.raises(OutOfMemoryError):
        run()
    return sessions[0]


@pytest.mark.parametrize(
    ("machine", "title", "diagnosis"),
    [
        (
            replace(SPARK, available=3 * GIB, free=2 * GIB),
            "the rest of the machine",
            "that CPU and GPU share",
        ),
        (
            replace(SPARK, available=40 * GIB, free=GIB),
            "40.0 GiB free (probably page cache)",
            "39.0 GiB was cache of files",
        ),
    ],
    indirect=["machine"],
    ids=["a full machine", "page cache"],
)
def test_an_error_names_what_had_the_memory(machine: Machine, title: str, diagnosis: str) -> None:
    """The rest of the machine is not called a process; page cache could have been given by the kernel."""
    (finding,) = (each for each in ran_out(machine, 4 * GIB).findings if each.kind == "oom")

    assert title in finding.title
    assert diagnosis in str(finding.evidence["diagnosis"])


@on(SPARK)
def test_how_long_tasks_wait_is_read(machine: Machine) -> None:
    """The series comes from the kernel's own figure, once there is any."""
    first = machine.watched()
    release_monitor()  # which would read it again after a second
    machine.now(stalled=14.25)
    session = machine.watched()

    assert first.index("cpu/stalled") is None
    assert session.latest("cpu/stalled") == 14.25


@on(SPARK)
def test_what_is_shared_is_kept_on_disk(machine: Machine, tmp_path: Path) -> None:
    """A recording that is read back has the same devices."""
    session = machine.watched(GIB)
    session.save(tmp_path / "run.jsonl.gz")

    assert hfmem_widget.open(tmp_path / "run.jsonl.gz").devices == session.devices
