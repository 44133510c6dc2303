"""The memory map of a real allocator: to the byte, and true in what it promises."""

import pytest

from tests.gpu.conftest import Run

MIB = 1 << 20

LOOK = """
import contextlib, io, os, sys, time
import torch
import hfmem_widget
from hfmem_widget.session.segments import LABELS
MIB = 1 << 20
def tensor(mib): return torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")
def look():
    found = hfmem_widget.memory_map("cuda:0")
    how = found.fragmentation()
    stats = torch.cuda.memory_stats_as_nested_dict(0)
    counted = {name: stats[f"{name}_bytes"]["all"]["current"]
               for name in ("reserved", "allocated", "active", "requested", "inactive_split")}
    # What a stream still uses is no longer allocated, but the allocator counts it as requested.
    waiting = sum(block["requested_size"] for one in torch.cuda.memory_snapshot() for block in one["blocks"]
                  if block["state"] == "active_pending_free")
    allocated = how.bytes("used") + how.bytes("rounding")
    sums = {"reserved": how.reserved, "allocated": allocated,
            "active": allocated + how.bytes("pending"), "requested": how.bytes("used") + waiting,
            "inactive_split": sum(block.size for one in found.segments if one.in_use and not one.expandable
                                  for block in one.blocks if block.state == "free")}
    assert sums == counted, (sums, counted)
    return {**{name: how.bytes(name) for name in LABELS}, "reserved": how.reserved, "fits": how.fits,
            "places": len(how.places), "seconds": found.seconds}
"""

INTERLEAVED = """
kept = [tensor(6) for _ in range(120)]
del kept[0::3], kept[1::2]
"""
"""Three to a segment of 20 MiB, of which one stays."""


def test_sums_are_the_allocators_and_promises_hold(run_python: Run) -> None:
    """Holes stay when the cache is emptied, whole segments go; what is said to fit fits, more does not."""
    before, grew, grew_more, after = run_python.after(LOOK + INTERLEAVED)("""
whole = tensor(100); del whole
before = look()
fitting = torch.empty(before["fits"], dtype=torch.uint8, device="cuda")
grew = look()["reserved"] - before["reserved"]
del fitting
larger = torch.empty(before["fits"] + MIB, dtype=torch.uint8, device="cuda")
grew_more = look()["reserved"] - before["reserved"]
del larger
torch.cuda.empty_cache()
report([before, grew, grew_more, look()])
""")

    assert before["hole"] == 40 * 14 * MIB
    assert before["whole"] == 100 * MIB == before["fits"]
    assert grew == 0
    assert grew_more > 0
    assert (after["hole"], after["whole"]) == (before["hole"], 0)


def test_what_a_side_stream_has_freed_and_what_it_still_uses(run_python: Run) -> None:
    """Free for that stream alone; freed while it may still read it; free again once it is done."""
    seen, waiting, later = run_python.after(LOOK)("""
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    gone = tensor(64); del gone
seen = look()
used = tensor(48)
used.record_stream(side)
with torch.cuda.stream(side):
    torch.cuda._sleep(3_000_000_000)
del used
waiting = look()
side.synchronize()
# The allocator looks at the streams when it is next asked for memory.
another = tensor(1)
report([seen, waiting, look()])
""")

    assert (seen["stream"], seen["whole"], seen["fits"]) == (64 * MIB, 0, 0)
    assert waiting["pending"] == 48 * MIB
    assert later["pending"] == 0


def test_private_pools_stand_apart(run_python: Run) -> None:
    """A `MemPool`'s and a CUDA graph's free blocks are for their owners alone."""
    mempool, both = run_python.after(LOOK)("""
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    kept, gone = tensor(64), tensor(32)
    del gone
mempool = look()
still = torch.zeros(4 * MIB, device="cuda")
graph = torch.cuda.CUDAGraph()
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    result = (still + 1) * 2
report([mempool, look()])
""")

    assert (mempool["pool"], mempool["whole"], mempool["fits"]) == (32 * MIB, 0, 0)
    assert both["places"] >= 3


def test_whole_pages_of_expandable_segments_go_and_nothing_else(run_python: Run) -> None:
    """To the byte, though the allocator's own counter of holes says 0."""
    before, after = run_python.after(
        "import os\nos.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments:True'\n" + LOOK
    )("""
kept = [tensor(30) for _ in range(20)]
del kept[0::2]
small = [torch.empty(100_000, dtype=torch.uint8, device="cuda") for _ in range(200)]
del small[40:160]
before = look()
torch.cuda.empty_cache()
report([before, look()])
""")

    assert before["whole"] > 0
    assert before["hole"] > 0
    assert before["reserved"] - after["reserved"] == before["whole"]
    assert (after["hole"], after["whole"]) == (before["hole"], 0)


def test_cudas_own_allocator_is_said_to_tell_nothing(run_python: Run) -> None:
    """One sentence with the sums, in the map and in what the watch leaves."""
    text, figures = run_python.after(
        "import os\nos.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'backend:cudaMallocAsync'\n" + LOOK
    )("""
kept = tensor(100)
shown = io.StringIO()
with contextlib.redirect_stdout(shown), hfmem_widget.watch("async", memory_map=True):
    time.sleep(0.3)
found = hfmem_widget.memory_map()
report([shown.getvalue(), [len(found.segments), found.notes["cuda:0"]]])
""")

    assert figures[0] == 0
    for sentence in (text, figures[1]):
        assert "cudaMallocAsync" in sentence
        assert "100.0 MiB in use" in sentence


def test_holes_that_made_a_cell_need_more_are_a_finding(run_python: Run) -> None:
    """With the figure that the map gives; the same cell without them has none."""
    cut, whole = run_python.after(LOOK)("""
from hfmem_widget.analysis.facts import findings_of
def watched(body):
    with hfmem_widget.watch(quiet=True, interval=0.05) as session:
        kept = body(); time.sleep(0.4)
        holes = look()["hole"]
    found = [one for one in findings_of(session, session.spans[0]) if one.kind == "fragmentation"]
    return [[one.title, one.evidence["holes"]] for one in found], holes
def cut():
    kept = [tensor(6) for _ in range(600)]
    del kept[0::3], kept[1::2]
    return kept, [tensor(64) for _ in range(60)]
def whole():
    return [tensor(64) for _ in range(60)]
first = watched(cut)
torch.cuda.empty_cache()
report([first, watched(whole)])
""")

    ((title, holes),), on_the_map = cut
    assert holes == pytest.approx(on_the_map, rel=0.02)
    assert "lay in holes between tensors" in title
    assert whole[0] == []
