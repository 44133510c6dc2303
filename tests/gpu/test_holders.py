"""The culprits of the kernel tests, on a GPU: first in the list, to the byte, and no byte missing."""

import json
from typing import Any

import pytest

pytest.importorskip("ipykernel", reason="notebooks need ipykernel")

from tests.kernel.culprits import BLOCK, CASES, IN_C_PLUS_PLUS, Case, printed, without_numbers
from tests.kernel.drive import Kernel

ASK = """
import dataclasses as _d, json as _j, hfmem_widget as _h
_before = torch.cuda.memory_allocated()
_told = _h.holders(device="cuda:0")
print(_j.dumps([[_d.asdict(one) for one in _told.rows], [_d.asdict(one) for one in _told.remainders],
                _before, torch.cuda.memory_allocated()]))
"""


def ask(kernel: Kernel) -> tuple[list[dict[str, Any]], dict[str, Any], int]:
    """Return the rows and the remainder of the device, and the allocated bytes by its allocator."""
    result = kernel.run(ASK)
    assert result.status == "ok", result.errors
    rows, (remainder,), before, after = json.loads(printed(result))
    assert before == after, "looking allocates nothing"
    return rows, remainder, after


def rounded(size: int) -> int:
    """Return the bytes that CUDA's allocator hands out for a request."""
    return -(-size // 512) * 512


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_culprit_is_the_first_row(fresh: Kernel, case: Case) -> None:
    """By its path and to the byte; explained and unexplained bytes add up to the allocated ones."""
    for cell in case.cells:
        result = fresh.run(cell)
        assert result.status == "ok" or "error" in case.path, result.errors
    rows, remainder, allocated = ask(fresh)

    assert without_numbers(rows[0]["path"]) == case.path
    assert rows[0]["kind"] == case.kind
    assert rows[0]["bytes"] == round(case.blocks * BLOCK)
    assert sum(row["bytes"] for row in rows) + remainder["bytes"] == allocated
    assert not remainder["is_host"]


def test_nothing_of_a_plain_notebook_is_unexplained(fresh: Kernel) -> None:
    """Except the allocator's rounding of each tensor, which is shown."""
    _, before, _ = ask(fresh)
    fresh.run("kept = [torch.zeros(n) for n in (1, 100, 1000, 2**20)]")
    rows, after, _ = ask(fresh)
    sizes = [4 * n for n in (1, 100, 1000, 2**20)]

    assert rows[0]["path"] == "kept[0..3]"
    assert rows[0]["bytes"] == sum(sizes)
    assert after["bytes"] - before["bytes"] == sum(map(rounded, sizes)) - sum(sizes)


def test_tensors_held_by_c_plus_plus_are_counted_to_the_byte(fresh: Kernel) -> None:
    """They are in a row for objects without a name, or in the remainder."""
    before_rows, before, _ = ask(fresh)
    assert fresh.run(IN_C_PLUS_PLUS).status == "ok"
    rows, after, _ = ask(fresh)

    named = sum(one["bytes"] for one in rows) - sum(one["bytes"] for one in before_rows)
    assert after["bytes"] - before["bytes"] + named == 32 * BLOCK


def test_the_device_is_told_apart_from_the_host(fresh: Kernel) -> None:
    """Of two blocks, only the one on the GPU is listed for the GPU."""
    fresh.run("here = torch.zeros(2**20, device='cpu'); there = block(2)")
    rows, _, _ = ask(fresh)
    assert [one["path"] for one in rows if one["bytes"] >= BLOCK] == ["there"]
