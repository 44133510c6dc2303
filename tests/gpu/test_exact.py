"""Peaks are the allocator's own, to the byte."""

from tests.gpu.conftest import Run
from tests.gpu.scenarios import MODEL, SETUP, TRAIN


def test_a_watched_cells_peak_is_what_the_bare_cell_reports(run_python: Run) -> None:
    """The peak of a training block equals max_memory_allocated() of the same block without us."""
    bare = run_python(
        SETUP
        + "torch.cuda.reset_peak_memory_stats()\n"
        + TRAIN
        + "report([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()])\n"
    )
    watched = run_python.after(
        "import hfmem_widget\n"
        + SETUP
        + "with hfmem_widget.watch('train', quiet=True) as session:\n    "
        + TRAIN.strip().replace("\n", "\n    ")
    )("""
peaks = session.spans[0].peaks
report([peaks["cuda:0/allocated"].value, peaks["cuda:0/reserved"].value,
        peaks["cuda:0/allocated"].certainty])
""")

    assert watched == [*bare, "exact"]


def test_a_cell_that_brings_cuda_up_is_exact_too(run_python: Run) -> None:
    """Importing torch and initialising CUDA inside the watched block loses nothing."""
    body = MODEL + "model = make_model(2)\nbatch_of(512)\ntorch.cuda.synchronize()\n"
    bare = run_python(body + "report(torch.cuda.max_memory_allocated())\n")
    watched = run_python.after(
        "import hfmem_widget\nwith hfmem_widget.watch(quiet=True) as session:\n    "
        + body.strip().replace("\n", "\n    ")
    )("""
peak = session.spans[0].peaks["cuda:0/allocated"]
report([peak.value, peak.certainty])
""")

    assert watched == [bare, "exact"]


def test_a_transient_tensor_between_two_ticks_is_in_the_peak(run_python: Run) -> None:
    """8 GiB that live for a millisecond are seen, though no sample saw them."""
    peak, sampled, start = run_python(
        """
import time, torch, hfmem_widget
torch.ones(1, device="cuda")
with hfmem_widget.watch(interval=1.0, quiet=True) as session:
    time.sleep(0.05)
    tensor = torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
    time.sleep(0.001)
    del tensor
    time.sleep(0.05)
span = session.spans[0]
column = session.index("cuda:0/allocated")
report([span.peaks["cuda:0/allocated"].value, float(session.timeline.high[:, column].max()),
        session.value(span.before, "cuda:0/allocated")])
"""
    )

    assert peak == start + (8 << 30)
    assert sampled < 1 << 20


def test_figures_agree_with_nvml_and_torch(run_python: Run) -> None:
    """Allocated and reserved are torch's, device use is NVML's, the device is matched by its UUID."""
    report = run_python(
        """
import time, torch, pynvml, hfmem_widget
with hfmem_widget.watch(interval=0.05, quiet=True) as session:
    tensor = torch.ones(1 << 28, device="cuda")
    torch.cuda.synchronize()
    time.sleep(0.3)
    torch_says = [torch.cuda.memory_allocated(), torch.cuda.memory_reserved()]
    pynvml.nvmlInit()
    uuid = "GPU-" + str(torch.cuda.get_device_properties(0).uuid)
    memory = pynvml.nvmlDeviceGetMemoryInfo(
        pynvml.nvmlDeviceGetHandleByUUID(uuid), version=pynvml.nvmlMemory_v2
    )
device = session.devices[0]
latest = {one.metric: session.latest(one.key) for one in session.series if one.device == "cuda:0"}
latest = {key: None if value != value else value for key, value in latest.items()}
report([torch_says, [memory.used, memory.reserved, memory.total], uuid, device.uuid,
        device.provisional, device.total, latest, session.notes])
"""
    )
    torch_says, (used, reserved, total), uuid, our_uuid, provisional, our_total, latest, notes = (
        report
    )

    assert [latest["allocated"], latest["reserved"]] == torch_says
    assert our_uuid == uuid
    assert not provisional
    assert latest["device_used"] in {used, used - reserved}
    assert latest["driver_reserved"] == reserved
    assert latest["device_used"] > latest["reserved"]
    assert our_total == total
    assert notes == []
