"""What the host's figure says of everything that people keep there, each kind in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from hfmem_widget.sources.malloc import find_glibc_heap
from hfmem_widget.text import MIB
from tests.data.host_kinds import KINDS

pytestmark = [
    pytest.mark.skipif(find_glibc_heap() is None, reason="needs glibc's own malloc"),
    pytest.mark.slow,
]

AROUND = """
import ctypes, json, os, sys
import numpy as np
from hfmem_widget.sources.host import HostSource
from hfmem_widget.sources.malloc import find_glibc_heap

source, heap, seconds = HostSource(), find_glibc_heap(), iter(range(0, 90, 10))

def read():
    source.read(next(seconds))
    values = source.read(next(seconds))
    told = dict(zip((one.metric for one in source.series), values))
    status = dict(line.split(":") for line in open("/proc/self/status"))
    private = sum(int(status[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))
    return told, private - int(heap().fordblks)

before, most_before = read()
"""
AFTER = """
after, most_after = read()
change = {name: after[name] - before.get(name, 0.0) for name in after}
print(json.dumps([float(OBJECTS), most_after - most_before, change]))
"""

WITHOUT_A_BOUND = {"what malloc has given back"}
"""After ``malloc_trim`` malloc counts as free what the system has; less that, it is too little."""


def measured(code: str) -> tuple[float, float, dict[str, float]]:
    """Return what objects take, what they take at most by /proc, and how each metric of the host changed."""
    first = "import torch\n" if "torch" in code else ""
    run = subprocess.run(
        [sys.executable, "-c", first + AROUND + code + AFTER],
        capture_output=True,
        text=True,
        check=True,
    )
    objects, most, change = json.loads(run.stdout)
    return objects, most, change


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_is_in_the_figure(kind: str) -> None:
    """Never less than the objects take, and never more than is private and not free in malloc."""
    objects, most, change = measured(KINDS[kind])
    told = change["allocated"]

    assert told >= 0.97 * objects - 8 * MIB
    if kind not in WITHOUT_A_BOUND:
        assert told <= 1.03 * most + 8 * MIB
    if "freed" in kind or "given back" in kind or "nobody wrote" in kind:
        assert told <= objects + 8 * MIB


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("lists of ints", "python"),
        ("texts", "python"),
        ("an array", "malloc"),
        ("tensors", "malloc"),
        ("Arrow tables", "arrow"),
        ("a column of texts", "arrow"),
        ("shared tensors", "shared"),
        ("many arrays, most of them freed", "cached"),
        ("lists of ints, most of them freed", "python_free"),
        ("an array that nobody wrote", "untouched"),
    ],
)
def test_its_parts_have_names(kind: str, part: str) -> None:
    """Most of what was kept, or is free, stands in the part that it belongs to."""
    objects, _, change = measured(KINDS[kind])

    assert change[part] >= 0.8 * (objects or 100 * MIB)
