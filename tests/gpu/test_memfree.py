"""`%memholders --free` on a GPU: freed memory is returned to the device, as measured."""

import re

import pytest

pytest.importorskip("ipykernel", reason="notebooks need ipykernel")

from tests.kernel.culprits import printed
from tests.kernel.drive import Kernel, Result

MIB = 2**20
OUT_OF_MEMORY = """
def train():
    activations = block(256)
    return torch.empty(1 << 44, dtype=torch.uint8)
train()
"""


def run_line(kernel: Kernel, line: str) -> str:
    result: Result = kernel.run(line)
    assert result.status == "ok", printed(result)
    (display,) = result.displays
    return str(display.content["data"]["text/plain"])


def counters(kernel: Kernel) -> tuple[int, int]:
    """Return what is allocated and reserved, in bytes."""
    result = kernel.run("print(torch.cuda.memory_allocated(), torch.cuda.memory_reserved())")
    allocated, reserved = map(int, printed(result).split())
    return allocated, reserved


def test_an_out_of_memory_errors_tensors_go_and_the_device_has_them_back(fresh: Kernel) -> None:
    """1 GiB that the traceback kept: allocated and reserved fall by it."""
    allocated, reserved = counters(fresh)
    assert fresh.run(OUT_OF_MEMORY).errors[0].content["ename"] == "OutOfMemoryError"
    assert counters(fresh) == (allocated + 1024 * MIB, reserved + 1024 * MIB)
    listed = run_line(fresh, "%memholders --free")
    assert re.search(r"errors +1\.00 GiB.*\n +the error of cell", listed)
    text = run_line(fresh, "%memholders --free errors")

    assert counters(fresh) == (allocated, reserved)
    assert "cuda:0: freed 1.00 of " in text
    for label in ("allocated", "reserved"):
        assert re.search(rf"cuda:0 {label} .* \u22121\.00 GiB", text), text
    assert "CUDA's cache emptied" in text


def test_without_the_cache_reserved_stays(fresh: Kernel) -> None:
    """`--no-cache` frees a tensor into the cache, whose bytes are shown and a later `cache` returns."""
    fresh.run("kept = block(64)")
    allocated, reserved = counters(fresh)
    run_line(fresh, "%memholders --free kept --no-cache")

    assert counters(fresh) == (allocated - 256 * MIB, reserved)
    assert "cuda:0" in run_line(fresh, "%memholders --free")
    cache = run_line(fresh, "%memholders --free")
    assert re.search(r"CUDA's cache: at most cuda:0 2\d\d(\.\d)? MiB", cache)
    run_line(fresh, "%memholders --free cache")
    assert counters(fresh)[1] <= reserved - 256 * MIB


def test_the_predicted_bytes_are_freed(fresh: Kernel) -> None:
    """For variables that share memory, outputs, and a graph."""
    fresh.run("weight = torch.nn.Parameter(torch.ones(2**20))")
    fresh.run("losses = [weight.exp().sum() for _ in range(16)]; both = [losses, block(8)]")
    result = fresh.run(
        "import hfmem_widget\n"
        "plan = hfmem_widget.free('losses', 'both', dry_run=True)\n"
        "done = hfmem_widget.free('losses', 'both')\n"
        "print(plan.together['cuda:0'], done.freed('cuda:0'))"
    )
    planned, freed = map(float, printed(result).split())

    assert planned == 16 * (4 * MIB + 4) + 32 * MIB
    assert freed == 16 * (4 * MIB + 512) + 32 * MIB
