"""What the host's figure says of everything that people keep there, each kind in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from hfmem_widget.sources.malloc import find_glibc_heap
from hfmem_widget.text import MIB
from tests.data import DATA

KINDS = {
    kind: code.strip()
    for kind, _, code in (
        each.partition("\n")
        for each in (DATA / "kept_kinds.txt").read_text("utf-8").split("== ")[1:]
    )
}
"""`OBJECTS` is by construction, or what the library's own allocator says; what is left as `kept` stays.

Code runs with `np` and, where `torch` is in it, `torch`.
"""


pytestmark = [
    pytest.mark.skipif(find_glibc_heap() is None, reason="needs glibc's own malloc"),
    pytest.mark.slow,
]

FORKS = """
import ctypes, json, os, sys
import numpy as np
from hfmem_widget.sources.heap.scan import scan
from hfmem_widget.sources.host import HostSource
from hfmem_widget.sources.malloc import find_glibc_heap

def measure(code):
    source, heap, seconds = HostSource(), find_glibc_heap(), iter(range(0, 90, 10))

    def read():
        source.read(next(seconds))
        values = source.read(next(seconds))
        figures = dict(zip((one.metric for one in source.series), values))
        status = dict(line.split(":") for line in open("/proc/self/status"))
        private = sum(int(status[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))
        return figures, private - int(heap().fordblks)

    before, most_before = read()
    kept = {"np": np, "os": os, "sys": sys, "ctypes": ctypes, "torch": sys.modules.get("torch")}
    exec(code, kept)
    after, most_after = read()
    change = {name: after[name] - before.get(name, 0.0) for name in after}
    held = sum(scan({"kept": kept["kept"]}, is_thorough=True).explained().values())
    print(json.dumps([float(kept["OBJECTS"]), most_after - most_before, change, held]), flush=True)

for line in sys.stdin:
    code = json.loads(line)
    if "torch" in code:
        import torch
    if (child := os.fork()) == 0:
        measure(code)
        os._exit(0)
    os.waitpid(child, 0)
"""
"""Each kind is made in a fork, which has what takes long to import: torch from the first that needs it on."""

PARTS = {
    "lists of ints": "python",
    "texts": "python",
    "an array": "malloc",
    "tensors": "malloc",
    "Arrow tables": "arrow",
    "a column of texts": "arrow",
    "shared tensors": "shared",
    "many arrays, most of them freed": "cached",
    "lists of ints, most of them freed": "python_free",
    "an array that nobody wrote": "untouched",
}
"""The part that most of what was kept, or is free, belongs to."""

WITHOUT_A_BOUND = {"what malloc has given back"}
"""After ``malloc_trim`` malloc counts as free what the system has; less that, it is too little."""

WITHOUT_A_HOLDER = {"a block of shared memory"}
"""A block itself has no row; arrays and tensors in one have."""


@pytest.fixture(scope="module")
def process() -> Iterator[subprocess.Popen[str]]:
    """Yield a process that makes each kind that it is sent in a child, and says what that came to."""
    with subprocess.Popen(
        [sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as made:
        yield made


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_is_in_the_figure(process: subprocess.Popen[str], kind: str) -> None:
    """It lies between what the objects take and what is in use; its part and its holder are known."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(KINDS[kind]) + "\n")
    process.stdin.flush()
    objects, most, change, held = json.loads(process.stdout.readline())
    figure = change["allocated"]

    assert figure >= 0.97 * objects - 8 * MIB
    if kind not in WITHOUT_A_HOLDER:
        assert held >= 0.95 * objects - MIB
    if kind not in WITHOUT_A_BOUND:
        assert figure <= 1.03 * most + 8 * MIB
    if "freed" in kind or "given back" in kind or "nobody wrote" in kind:
        assert figure <= objects + 8 * MIB
    if kind in PARTS:
        assert change[PARTS[kind]] >= 0.8 * (objects or 100 * MIB)
