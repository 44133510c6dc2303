"""With a stand-in for the driver's library: hung calls, exits in the middle of one, and child processes."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.fakes.children import LAUNCH
from tests.fakes.nvml_stub import stub_or_skip
from tests.kernel.drive import Kernel

RunScript = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stub_or_skip(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def run_script(library: Path) -> RunScript:
    """Return a function that runs a script with the stand-in library."""

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
# What a watch needs is loaded once, in the parent: a first child writes what that is.
reader, writer = os.pipe()
if os.fork() == 0:
    hfmem_widget.watch("loads", quiet=True).__enter__()
    os.write(writer, " ".join(one for one in sys.modules if one.startswith("hfmem_widget")).encode())
    os._exit(0)
os.wait()
for name in os.read(reader, 65536).decode().split():
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
    """The user's block continues and ends; the driver's figures are not available."""
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


@pytest.fixture(scope="module")
def on_four_gpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """Return a kernel that sees four GPUs and can start ranks on them."""
    folder = stub_or_skip(tmp_path_factory.mktemp("nvml"))
    processes = folder / "processes"
    processes.mkdir()
    # Somebody else's job was there before.
    (processes / "3.1.2048").touch()
    stub = {"LD_LIBRARY_PATH": str(folder), "NVML_STUB_DEVICES": "4"}
    stub["NVML_STUB_PROCESSES"] = str(processes)
    with Kernel(env=stub) as kernel:
        assert kernel.run(f"%load_ext hfmem_widget\n{LAUNCH}").status == "ok"
        yield kernel


def summary_of(kernel: Kernel, cell: str) -> str:
    result = kernel.run(cell)
    assert result.status == "ok", result
    texts = [str(each.content["data"].get("text/plain", "")) for each in result.displays]
    return next(line for text in texts for line in text.splitlines() if " \u00b7 " in line)


def test_a_shell_s_child_counts(on_four_gpus: Kernel) -> None:
    """`!python train.py`: a shell may be in between."""
    run = "!{sys.executable} -c '{RANK}' {os.environ['NVML_STUB_PROCESSES']} 1 4 1; true"
    summary = summary_of(on_four_gpus, f"%%memwatch --label shell\n{run}")

    assert "cuda:1 rose by 15.5 GiB to 15.5 GiB, by 1 child process" in summary


def test_workers_without_a_gpu_are_not_shown(on_four_gpus: Kernel) -> None:
    """Workers without a GPU, and a process that ran before, are not children of the cell."""
    cell = "%%memwatch --label idle\nfor _ in range(3): subprocess.run([sys.executable, '-c', '1'])"

    assert "child" not in summary_of(on_four_gpus, cell)


def test_a_notebook_that_is_watched_shows_such_a_cell(on_four_gpus: Kernel) -> None:
    """Under `%memwatch on` a cell that changed little itself is left out, but not this one."""
    on_four_gpus.run("%memwatch on --no-chart")
    summary = summary_of(on_four_gpus, "launch([0, 1])")
    on_four_gpus.run("%memwatch off")

    assert "2 devices rose by 15.5 GiB each" in summary
