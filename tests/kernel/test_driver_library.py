"""With a stand-in for the driver's library: hung calls, lost devices, and exits in the middle of one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.fakes.nvml_stub import NoCompilerError, build_stub

RunScript = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the stand-in library."""
    folder = tmp_path_factory.mktemp("nvml")
    try:
        build_stub(folder)
    except NoCompilerError as error:
        pytest.skip(str(error))
    return folder


@pytest.fixture
def run_script(library: Path) -> RunScript:
    """Return a function that runs a script that finds the stand-in."""

    def run(
        script: str, *args: str, timeout: float | None = None, **stub: str
    ) -> subprocess.CompletedProcess[str]:
        env: Mapping[str, str] = {**os.environ, "LD_LIBRARY_PATH": str(library), **stub}
        command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, *args]
        return subprocess.run(
            command, capture_output=True, text=True, env=env, timeout=timeout, check=False
        )

    return run


EXITS = """
import importlib, os, random, sys, time
import hfmem_widget
from hfmem_widget import Session
import hfmem_widget.drivers.watch, pynvml
# What a watch needs is loaded once, in the parent: a first child tells what that is.
told, tell = os.pipe()
if os.fork() == 0:
    hfmem_widget.watch("loads", quiet=True).__enter__()
    os.write(tell, " ".join(one for one in sys.modules if one.startswith("hfmem_widget")).encode())
    os._exit(0)
os.wait()
for name in os.read(told, 65536).decode().split():
    importlib.import_module(name)
failed = []
for number in range(int(sys.argv[1])):
    pid = os.fork()
    if pid == 0:
        break
    _, status = os.waitpid(pid, 0)
    if status:
        failed.append((number, status))
else:
    print(failed)
    sys.exit(0)
random.seed(number)
hfmem_widget.watch("exit", interval=0.01, quiet=True).__enter__()
time.sleep(random.random() * 0.04)
"""


@pytest.mark.parametrize("exits", [20, pytest.param(300, marks=pytest.mark.full)])
def test_exits_at_random_moments(run_script: RunScript, exits: int) -> None:
    """Interpreters that end while a driver call is in flight end cleanly, whatever the moment."""
    done = run_script(EXITS, str(exits), NVML_STUB_SLEEP_MS="3")

    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[]", "")


def test_an_exit_during_a_hung_call_does_not_hang(run_script: RunScript) -> None:
    """A driver call that takes minutes delays the end of the process by a second at most."""
    done = run_script(
        "import hfmem_widget, time\n"
        "hfmem_widget.watch('hung', interval=0.01, quiet=True).__enter__()\n"
        "time.sleep(0.2)",
        timeout=240,
        NVML_STUB_SLEEP_MS="480000",
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_a_cell_ends_while_the_driver_hangs(run_script: RunScript) -> None:
    """The user's block goes on and ends; what the driver did not say is not available."""
    done = run_script(
        "import hfmem_widget, math\n"
        "with hfmem_widget.watch('hung', interval=0.01, quiet=True) as session:\n"
        "    data = bytearray(50_000_000)\n"
        "    used = session.latest('cuda:0/device_used')\n"
        "span = session.spans[0]\n"
        "print(session.value(span.after, 'cpu/allocated') > session.value(span.before, 'cpu/allocated'),\n"
        "      math.isnan(used))",
        timeout=240,
        NVML_STUB_SLEEP_MS="480000",
    )

    assert (done.returncode, done.stdout.split()) == (0, ["True", "True"])
