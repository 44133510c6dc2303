"""The free memory of each device, also for ``device_map="auto"``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit import room as module
from hfmem_widget.features.fit.model import Room
from hfmem_widget.features.fit.room import CONTEXT, max_memory, rooms
from hfmem_widget.sources.counters import AllocatorSource, TensorSource
from hfmem_widget.sources.host import HostSource
from hfmem_widget.sources.nvml import NvmlSource
from hfmem_widget.sources.torch_cuda import CudaAllocator
from tests.fakes.nvml import GIB, MIB, FakeGpu, FakeNvml
from tests.fakes.nvml_source import HOST_NAMESPACE, make_proc, two_cards
from tests.fakes.torch_cuda import FakeAllocator, FakeTorch

Rooms = tuple[tuple[Room, ...], str]


class Machine:
    """Fake sources of free memory."""

    def __init__(
        self, proc: Path, gpus: Sequence[FakeGpu], environ: dict[str, str] | None = None
    ) -> None:
        self.cuda = FakeAllocator(initialized=False)
        self.nvml = FakeNvml(gpus)
        torch_cuda = AllocatorSource(CudaAllocator({"torch": FakeTorch(self.cuda)}))
        nvml = NvmlSource(torch_cuda, environ or {}, load=self.nvml.load, proc=proc)
        sources = (torch_cuda, nvml, HostSource(), TensorSource())
        self._opened = mock.patch.object(module, "opened_sources", return_value=sources)

    def rooms(self) -> Rooms:
        with self._opened:
            return rooms()

    def max_memory(self, *args: Any, **more: Any) -> dict[Any, Any]:
        with self._opened:
            return max_memory(*args, **more)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    return make_proc(tmp_path, HOST_NAMESPACE)


def test_room_is_the_drivers_figure_minus_the_context_to_come(proc: Path) -> None:
    """CUDA is not initialised yet; the driver's reserve is not counted as free."""
    card = FakeGpu(total=80 * GIB, used=3 * GIB, reserved=600 * MIB)
    (gpu, _), note = Machine(proc, [card]).rooms()

    assert gpu.free == 77 * GIB - 600 * MIB
    assert gpu.available == gpu.free - CONTEXT
    assert note == ""


def test_memory_that_pytorch_has_cached_is_free_for_this_process(proc: Path) -> None:
    """With CUDA initialised, reserved and not allocated memory counts, and the context exists already."""
    machine = Machine(proc, [FakeGpu(used=5 * GIB)])
    machine.cuda.initialized = True
    machine.cuda.free(machine.cuda.alloc(2 * GIB))
    machine.cuda.alloc(GIB)
    (gpu, _), _ = machine.rooms()

    assert (gpu.cached, gpu.context) == (GIB, 0)
    assert gpu.available == gpu.free + GIB


def test_the_order_of_visible_devices_is_cudas(proc: Path) -> None:
    """GPU 0 is the first in CUDA_VISIBLE_DEVICES; invisible ones are left out."""
    for value, names in (("1,0", ["NVIDIA A100", "NVIDIA T4"]), ("1", ["NVIDIA A100"]), ("", [])):
        rooms, _ = Machine(proc, two_cards(), {"CUDA_VISIBLE_DEVICES": value}).rooms()

        assert [one.name for one in rooms[:-1]] == names
        assert [one.device for one in rooms] == [*(f"cuda:{at}" for at in range(len(names))), "cpu"]


def test_headroom_is_subtracted_once(proc: Path) -> None:
    """Keys are indices of GPUs and "cpu", values whole bytes."""
    machine = Machine(proc, two_cards())
    devices, _ = machine.rooms()
    sizes = machine.max_memory(0.25)

    assert list(sizes) == [0, 1, "cpu"]
    assert all(isinstance(size, int) for size in sizes.values())
    assert sizes[0] == int(devices[0].available * 0.75)


def test_the_quantisers_own_tenth_is_not_subtracted(proc: Path) -> None:
    """After quantisers take it, the headroom is the requested one, and no sum exceeds the device."""
    machine = Machine(proc, two_cards())
    free = machine.rooms()[0][0].available

    assert machine.max_memory(0.25, quantized=True)[0] * 0.9 == pytest.approx(free * 0.75)
    assert machine.max_memory(0.0, quantized=True)[0] == int(free)


def test_transformers_takes_the_dictionary(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own code for device_map="auto" subtracts nothing a second time."""
    theirs = pytest.importorskip("transformers.integrations.accelerate")
    if not hasattr(theirs, "get_balanced_memory"):
        pytest.skip("transformers 4 takes accelerate's, which asks CUDA for its devices")
    from transformers.quantizers.quantizer_bnb_4bit import Bnb4BitHfQuantizer

    from tests.data.fit_models import built, llama

    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    machine = Machine(proc, [FakeGpu()])
    sizes = machine.max_memory(0.25)

    assert theirs.get_max_memory(dict(sizes)) == sizes
    assert theirs.get_balanced_memory(built(llama()), dict(sizes)) == sizes
    quantized = machine.max_memory(0.25, quantized=True)
    after = Bnb4BitHfQuantizer.adjust_max_memory(object(), quantized)
    assert after[0] == pytest.approx(sizes[0])


def test_without_a_gpu_there_is_the_host(proc: Path) -> None:
    """A machine without NVIDIA's driver is not an error."""
    machine = Machine(proc, [])
    machine.nvml.init_fault = 12

    assert list(machine.max_memory()) == ["cpu"]


def test_a_gpu_without_an_answer_is_a_note(proc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The reason is one line, and there is no wrong figure."""
    machine = Machine(proc, [FakeGpu(), FakeGpu(uuid="GPU-b", faults={"MemoryInfo": 999})])

    assert list(machine.max_memory()) == [0, "cpu"]
    assert "Free memory of cuda:1 is unknown." in capsys.readouterr().err


@pytest.mark.parametrize("headroom", [-0.1, 1, 1.5, float("nan"), "10%", True])
def test_an_invalid_headroom_is_an_error(headroom: Any) -> None:
    """It must be a share below 1."""
    with pytest.raises(OptionError, match="headroom must be a share from 0 to below 1"):
        max_memory(headroom)


def test_this_machine_has_some_memory() -> None:
    """The real sources find free memory, and no more than the machine has."""
    assert 0 < int(max_memory()["cpu"]) < HostSource().devices[0].total
