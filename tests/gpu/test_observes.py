"""Watching changes nothing: not CUDA's state, not the user's counters, not a fork, not an exit."""

import subprocess
import sys

import pytest

from tests.gpu.conftest import Run
from tests.gpu.scenarios import QUIET_CHECK, SETUP

USERS_VIEW = (
    SETUP
    + """
seen = []
def look():
    stats = torch.cuda.memory_stats()
    seen.append([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(),
                 torch.accelerator.max_memory_allocated(),
                 {key: value for key, value in stats.items()
                  # Which split blocks are free at once depends on the backward thread's timing.
                  if "peak" in key and not key.startswith("inactive_split")}])
look()
for tokens in (64, 511, 128):
    with phase():
        step(model, optimizer, tokens)
    look()
torch.cuda.reset_peak_memory_stats()
look()
with phase():
    step(model, optimizer, 300)
    look()
    torch.cuda.reset_peak_memory_stats()
    step(model, optimizer, 100)
    look()
with phase():
    with phase():
        step(model, optimizer, 64)
look()
torch.accelerator.reset_peak_memory_stats()
look()
report(seen)
"""
)


def test_the_users_peak_functions_return_what_they_return_without_us(run_python: Run) -> None:
    """Peaks, their resets and every peak of memory_stats read the same with nested watches as without."""
    bare = run_python("import contextlib\nphase = contextlib.nullcontext\n" + USERS_VIEW)
    nested = "import hfmem_widget\nphase = lambda: hfmem_widget.watch(interval=0.02, quiet=True)\n"
    assert run_python(nested + USERS_VIEW) == bare


@pytest.mark.whole_card
def test_watching_before_cuda_is_up_leaves_it_down(run_python: Run) -> None:
    """With NVML polled and torch imported, CUDA stays uninitialised and the device's memory unchanged."""
    report = run_python.after(QUIET_CHECK)("""
import time
before = device_used()
import hfmem_widget
with hfmem_widget.watch("idle", interval=0.02, quiet=True) as session:
    import torch
    time.sleep(0.5)
    after = device_used()
    initialized = torch.cuda.is_initialized()
    # 3 is CUDA_ERROR_NOT_INITIALIZED: nobody in this process has called cuInit.
    import ctypes
    driver = ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(ctypes.c_int()))
report([before, after, initialized, session.latest("cuda:0/device_used"), session.polling.ticks,
        driver])
""")
    before, after, initialized, device_used, ticks, driver = report

    assert after == before
    assert not initialized
    assert driver == 3
    assert ticks > 10
    assert device_used == after


def test_dataloader_workers_come_and_go_under_a_watch(run_python: Run) -> None:
    """Twenty rounds of eight forked workers with pinned memory end, while CUDA is in use and polled."""
    rounds = run_python(
        """
import torch, hfmem_widget
data = torch.utils.data.TensorDataset(torch.arange(4096.0))
rounds = 0
with hfmem_widget.watch("loader", interval=0.02, quiet=True):
    total = torch.zeros((), device="cuda")
    for _ in range(20):
        loader = torch.utils.data.DataLoader(data, batch_size=64, num_workers=8, pin_memory=True)
        for (batch,) in loader:
            total += batch.to("cuda", non_blocking=True).sum()
        rounds += 1
report([rounds, float(total)])
"""
    )

    assert rounds == [20, 20 * 4096 * 4095 / 2]


def test_exits_at_any_moment_are_clean() -> None:
    """Interpreters that end while NVML and the allocator are polled end with status 0."""
    script = """
import random, sys, time
import hfmem_widget, torch
hfmem_widget.watch("exit", interval=0.01, quiet=True).__enter__()
torch.ones(1000, device="cuda")
time.sleep(random.random() * 0.1)
"""
    for _ in range(15):
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
        )

        assert (done.returncode, done.stderr) == (0, "")
