"""A cell whose child processes use the GPUs, in a real kernel over a stand-in for the driver's library."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.children import LAUNCH
from tests.fakes.nvml_stub import NoCompilerError, build_stub
from tests.kernel.drive import Kernel


@pytest.fixture(scope="module")
def on_four_gpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """Return a kernel that sees four GPUs and can start ranks on them."""
    folder = tmp_path_factory.mktemp("nvml")
    try:
        build_stub(folder)
    except NoCompilerError as error:
        pytest.skip(str(error))
    processes = folder / "processes"
    processes.mkdir()
    # Somebody else's job was there before.
    (processes / "3.1.2048").touch()
    stub = {
        "LD_LIBRARY_PATH": str(folder),
        "NVML_STUB_DEVICES": "4",
        "NVML_STUB_PROCESSES": str(processes),
    }
    with Kernel(env=stub) as kernel:
        assert kernel.run(f"%load_ext hfmem_widget\n{LAUNCH}").status == "ok"
        yield kernel


def told_by(kernel: Kernel, cell: str) -> str:
    """Return the first line of the text of a watched cell's card."""
    result = kernel.run(cell)
    assert result.status == "ok", result
    said = [str(each.content["data"].get("text/plain", "")) for each in result.displays]
    return next(line for text in said for line in text.splitlines() if " \u00b7 " in line)


def test_a_shell_s_child_counts(on_four_gpus: Kernel) -> None:
    """`!python train.py`: a shell may stand between."""
    run = "!{sys.executable} -c '{RANK}' {os.environ['NVML_STUB_PROCESSES']} 1 4 1; true"
    told = told_by(on_four_gpus, f"%%memwatch --label shell\n{run}")

    assert "cuda:1 rose by 15.5 GiB to 15.5 GiB, by 1 child process" in told


def test_workers_without_a_gpu_are_nothing(on_four_gpus: Kernel) -> None:
    """Nor is a job that was there before."""
    cell = "%%memwatch --label idle\nfor _ in range(3): subprocess.run([sys.executable, '-c', '1'])"

    assert "child" not in told_by(on_four_gpus, cell)


def test_a_notebook_that_is_watched_shows_such_a_cell(on_four_gpus: Kernel) -> None:
    """Under `%memwatch on` a cell that changed little itself is left out, but not this one."""
    on_four_gpus.run("%memwatch on --no-chart")
    told = told_by(on_four_gpus, "launch([0, 1])")
    on_four_gpus.run("%memwatch off")

    assert "2 devices rose by 15.5 GiB each" in told
