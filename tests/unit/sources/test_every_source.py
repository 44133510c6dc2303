"""What holds for every way of reading memory."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pynvml
import pytest

from hfmem_widget.session import Series
from hfmem_widget.sources import Source, open_allocators, open_sources
from hfmem_widget.sources.children import Held
from hfmem_widget.sources.counters import AllocatorSource
from hfmem_widget.sources.host import HostSource
from hfmem_widget.sources.nvml import NvmlSource
from hfmem_widget.sources.torch_cuda import CudaAllocator
from tests.data import ROOT
from tests.fakes.nvml import FakeGpu, FakeNvml
from tests.fakes.torch_cuda import FakeAllocator, FakeTorch
from tests.unit.sources.test_children import Fake

Step = Callable[[], None]


def torch_that_comes_up_and_fails() -> tuple[Source, list[Step]]:
    """Return torch's source, with CUDA coming up, a device failing, and CUDA going."""
    fake = FakeAllocator(devices=2, initialized=False)

    def up() -> None:
        fake.initialized = True
        fake.alloc(1 << 20, device=1)

    fail = partial(setattr, fake.pools[1], "stats", None)
    fork = partial(setattr, fake, "initialized", False)
    return AllocatorSource(CudaAllocator({"torch": FakeTorch(fake)})), [up, fail, fork]


def nvml_that_comes_up_and_fails() -> tuple[Source, list[Step]]:
    """Return NVML's source, with other devices visible, a device lost, NVML shut, a call that breaks."""
    gpus = [FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b", name="Other")]
    nvml = FakeNvml(gpus)
    environ = {"CUDA_VISIBLE_DEVICES": "0"}
    show_both = partial(environ.update, CUDA_VISIBLE_DEVICES="1,0")
    lose = partial(gpus[0].faults.update, all=pynvml.NVML_ERROR_GPU_IS_LOST)
    shut = partial(setattr, nvml, "initialized", False)
    hide = partial(environ.update, CUDA_VISIBLE_DEVICES="")

    def break_down() -> None:
        nvml.nvmlInit = nvml.nvmlDeviceGetCount = None  # type: ignore[assignment, method-assign]
        nvml.initialized = False

    steps: list[Step] = [show_both, lose, shut, hide, show_both, break_down]
    return NvmlSource(None, environ, load=nvml.load), steps


def host_that_loses_its_files() -> tuple[Source, list[Step]]:
    """Return this process' source, with a heap that cannot be read any more."""
    source = HostSource()
    return source, [partial(setattr, source, "_heap", lambda: None)]


def no_gpu() -> tuple[Source, list[Step]]:
    """Return NVML's source on a machine without a driver."""
    nvml = FakeNvml(init_fault=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    return NvmlSource(None, {}, load=nvml.load), []


def children_that_come_and_go() -> tuple[Source, list[Step]]:
    """Return the source of child processes, of which there is one, then none, then a fault."""
    children = Fake({7: Held(100.0)})
    fault = partial(children.now.update, {8: None})
    return children.source(), [children.now.clear, fault]


@pytest.mark.parametrize(
    "scene",
    [
        torch_that_comes_up_and_fails,
        nvml_that_comes_up_and_fails,
        host_that_loses_its_files,
        no_gpu,
        children_that_come_and_go,
    ],
)
def test_the_contract_holds_throughout(scene: Callable[[], tuple[Source, list[Step]]]) -> None:
    """Values are floats aligned with the series, which only grow; nothing raises; notes are said once."""
    source, steps = scene()
    series: tuple[Series, ...] = ()
    now = 0.0
    for step in [lambda: None, *steps]:
        step()
        for _ in range(25):
            now += 1.5
            values = source.read(now)
            assert len(values) == len(source.series)
            assert all(type(value) is float for value in values)
            assert source.series[: len(series)] == series
            series = source.series
            assert all(one.startswith(("cuda:", "cpu")) for one in (s.device for s in series))
    assert len(set(source.notes)) == len(source.notes)
    source.close()


def test_what_takes_long_may_block() -> None:
    """What is read on the user's thread never waits for a driver, nor for other processes' page tables."""
    names = [source.name for source in open_sources({}, open_allocators()) if source.blocks]

    assert names == ["nvml", "driver", "child processes"]


def test_the_driver_learns_cudas_order_from_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once CUDA is up, device memory is shown for the GPUs that torch uses, in its order."""
    fake = FakeAllocator(devices=2)
    nvml = FakeNvml([FakeGpu(uuid=f"GPU-{pool.uuid}") for pool in reversed(fake.pools)])
    monkeypatch.setitem(sys.modules, "torch", FakeTorch(fake))
    torch_cuda, *others = open_sources({}, open_allocators())
    driver = next(source for source in others if isinstance(source, NvmlSource))
    monkeypatch.setattr(driver, "_load", nvml.load)
    torch_cuda.read(0.0)
    driver.read(0.0)

    assert [one.uuid for one in driver.devices] == [one.uuid for one in torch_cuda.devices]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="psutil is needed elsewhere")
def test_opening_and_polling_imports_nothing_of_the_users() -> None:
    """Neither opening, polling nor a search loads torch or tables; opening loads no driver's library."""
    code = (
        "import sys; from hfmem_widget.sources import open_allocators, open_sources\n"
        "from hfmem_widget.sources.heap.scan import scan\n"
        "from hfmem_widget.sources.storages import states_of, storages_of\n"
        "sources = open_sources({}, open_allocators())\n"
        "assert not {'torch', 'pynvml', 'psutil'} & set(sys.modules)\n"
        "for source in sources: source.read(0.0)\n"
        "assert storages_of(3) == () and list(states_of(3)) == []\n"
        "scan({'numbers': [1, 2], 'words': {'a': [object()]}})\n"
        "assert not {'torch', 'pandas', 'polars', 'pyarrow', 'datasets'} & set(sys.modules)\n"
    )

    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
