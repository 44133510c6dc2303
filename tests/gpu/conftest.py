"""Tests on a real GPU. Each runs its code in an interpreter of its own, without CUDA initialised."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

LOOK = """
import importlib.util
if importlib.util.find_spec("torch") is None:
    print("torch is not installed")
else:
    import torch
    if torch.version.cuda is None:
        print("torch is built without CUDA")
    elif not torch.cuda.is_available():
        print("torch finds no CUDA device")
"""


@dataclass(frozen=True)
class Run:
    """Runs code in a new interpreter, and returns what it passed to `report`."""

    before: str = ""

    def after(self, before: str) -> Run:
        return Run(before)

    def __call__(self, code: str) -> Any:
        report = "import json\ndef report(value):\n    print('\\n@@' + json.dumps(value))\n"
        script = f"{report}{self.before}{code}"
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr[-4000:]
        lines = [line for line in done.stdout.splitlines() if line.startswith("@@")]
        assert lines, done.stdout[-2000:]
        return json.loads(lines[-1][2:])


LOCKS = Path(tempfile.gettempdir())


@pytest.fixture(autouse=True)
def the_card(request: pytest.FixtureRequest) -> Iterator[None]:
    """Share the card with tests in other processes, or have it alone if a test is marked `whole_card`."""
    is_alone = request.node.get_closest_marker("whole_card") is not None
    with _locked("hfmem-tests-card", shared=not is_alone, gate="hfmem-tests-gate"):
        yield


@contextmanager
def _locked(name: str, *, shared: bool, gate: str = "") -> Iterator[None]:
    """Hold a lock of this machine; a waiting process keeps the gate, so that no other comes before it."""
    with (LOCKS / name).open("w") as file:
        if gate:
            with _locked(gate, shared=False):
                fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        else:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip everything here, with the reason, if there is no GPU."""
    here = [item for item in items if "tests/gpu" in item.path.as_posix()]
    if not here:
        return
    look = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=False)
    reason = look.stdout.strip() or (look.stderr.strip().splitlines() or [""])[-1]
    for item in here:
        item.add_marker(pytest.mark.gpu)
        if reason:
            item.add_marker(pytest.mark.skip(reason=f"no GPU to test on: {reason}"))


@pytest.fixture
def run_python() -> Run:
    return Run()


@pytest.fixture
def two_gpus(run_python: Run) -> None:
    if run_python("import torch\nreport(torch.cuda.device_count())") < 2:
        pytest.skip("needs two GPUs")


@pytest.fixture(scope="module")
def notebook() -> Iterator[Any]:
    from tests.kernel.drive import Kernel

    with Kernel() as kernel:
        up = kernel.run("import torch; torch.zeros(1, device='cuda'); torch.cuda.init()")
        assert up.status == "ok", up.errors
        yield kernel


@pytest.fixture
def fresh(notebook: Any) -> Any:
    """Return that kernel with nothing left of the test before; its tensors are made on the GPU."""
    from tests.kernel.culprits import begin_anew

    begin_anew(notebook, "cuda")
    notebook.run("gc.collect(); torch.cuda.empty_cache();")
    return notebook
