"""Ranks that a cell starts, in a real kernel: found, shown while they run, and kept in the session."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.ranks import Script, SimulatedRun
from tests.kernel.drive import Kernel, Message, Result
from tests.ranks.launch import SCRIPTS, free_port

TRAIN = """
%load_ext hfmem_widget
import os, sys, json, time, pathlib
import torch
from accelerate import notebook_launcher

def train():
    from accelerate import Accelerator
    import hfmem_widget
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(512, 512)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    kept = torch.ones(accelerator.process_index << 24)
    for step in range(8):
        with hfmem_widget.span("step"):
            model(torch.randn(256, 512)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.25)
    until = time.monotonic() + 120  # a busy machine draws late
    while not pathlib.Path(SEEN).exists() and time.monotonic() < until:
        time.sleep(0.05)

def variables():
    return {name: os.environ.get(name) for name in ("HFMEM_RUN", "PYTHONPATH", "HFMEM_CLAIMED")}
before = variables()
"""

SCRIPT = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(512, 512)
for step in range(6):
    model(torch.randn(256, 512)).sum().backward()
    time.sleep(0.25)
dist.barrier()
dist.destroy_process_group()
"""


def tells_of_ranks(message: Message) -> bool:
    """Return whether this message is about two ranks: all together, and each."""
    data = message.content.get("data", {}).get("content", {}) if message.kind == "comm_msg" else {}
    devices = data.get("schema", {}).get("devices", [])
    return [device["key"] for device in devices] == ["ranks", "rank:0", "rank:1"]


def is_card(message: Message) -> bool:
    return "worst peak" in message.content.get("data", {}).get("text/plain", "")


@pytest.fixture(scope="module")
def launched(torch_command: list[str], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a kernel in which a cell has started two ranks, and what came of that cell.

    The ranks end once the page was told of them.

    Its session is `s`, for all tests of this file and in any order: none binds that name anew.
    """
    with Kernel(command=torch_command) as kernel:
        seen = tmp_path_factory.mktemp("launched") / "seen"
        assert kernel.run(f"SEEN = {str(seen)!r}\n{TRAIN}").status == "ok"
        launch = f"notebook_launcher(train, num_processes=2, use_port={free_port()!r})"
        running = kernel.send(f"%%memwatch -o s --label two\n{launch}")
        with suppress(TimeoutError):  # a test says so
            kernel.wait_for(tells_of_ranks, timeout=120)
        seen.touch()
        yield kernel, kernel.collect(running)


def value_of(kernel: Kernel, expression: str) -> Any:
    """Return the value of an expression in the kernel, by way of JSON."""
    result = kernel.run(f"print(json.dumps({expression}))")
    assert result.status == "ok", result.errors
    return json.loads(result.text())


def test_the_ranks_of_a_cell_are_in_its_session(launched: tuple[Kernel, Result]) -> None:
    """Exactly those that trained, with all their steps; rank 1, which keeps 64 MiB more, is the worst."""
    kernel, result = launched

    assert result.status == "ok", result.text("stderr")
    assert value_of(kernel, "[len(s.run.ranks), s.run.world, s.run.worst]") == [2, 2, 1]
    assert value_of(kernel, "[s.run.session(rank).steps.count for rank in (0, 1)]") == [8, 8]
    assert value_of(kernel, "s.run.running") is False


def test_torchruns_ranks_are_in_a_given_directory(tmp_path: Path, bare_command: list[str]) -> None:
    """The script does not know of it."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    module = f"torch.distributed.run --nproc-per-node 2 --master-port {free_port()}"
    torchrun = f"!{{sys.executable}} -m {module} {script}"
    with Kernel({"OMP_NUM_THREADS": "1"}, command=bare_command) as kernel:
        kernel.run("%load_ext hfmem_widget\nimport sys, json")
        first = kernel.run(f"%%memwatch -o s --ranks {tmp_path / 'run'}\n{torchrun}")
        found = value_of(kernel, "[len(s.run.ranks), s.run.directory.name]")
        opened = kernel.run(f"%memwatch open {tmp_path / 'run'} -o back")
        back = value_of(kernel, "[len(back.ranks), back.running]")

    assert [first.status, opened.status] == ["ok"] * 2
    assert found == [2, "run"]
    assert back == [2, False]
    assert any(map(is_card, opened.displays))


def test_a_run_of_another_process_is_shown_until_it_ends(kernel: Kernel, tmp_path: Path) -> None:
    """`%memwatch open` of its directory draws it live, whoever started it; its card appears by itself."""
    run = SimulatedRun(Script(world=2), began=time.time() - 20)
    run.write(tmp_path / "run", 20.0, finish=False)
    kernel.run("%load_ext hfmem_widget\nimport gc")
    opened = kernel.run(f"%memwatch open {tmp_path / 'run'}\ngc.collect();")
    live = kernel.wait_for(tells_of_ranks)
    run.write(tmp_path / "run", 1.0)
    card = kernel.wait_for(is_card)

    assert opened.status == "ok"
    assert not any(map(is_card, opened.displays))
    assert live in kernel.published
    assert card.kind == "update_display_data"


BEHIND = """
%load_ext hfmem_widget
import json, os, subprocess, sys, time
def start(script, flag):
    return [
        subprocess.Popen(
            [sys.executable, script, flag], start_new_session=True, stdin=subprocess.DEVNULL,
            env=os.environ | {"RANK": str(rank), "WORLD_SIZE": "2"},
        )
        for rank in range(2)
    ]
def wait(run):
    while not os.path.isdir(run) or len(os.listdir(run)) < 3:
        time.sleep(0.1)
"""


def newest(run: Path) -> float:
    """Return the time of the newest write of a rank there."""
    return max(path.stat().st_mtime for path in run.glob("r*.jsonl"))


def waited_for(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 240.0
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    return condition()


def test_no_ranks_are_followed_with_no_ranks(kernel: Kernel, tmp_path: Path) -> None:
    """The session has no run, whatever the cell starts."""
    flag = tmp_path / "flag"
    flag.touch()
    kernel.run(BEHIND)
    script = str(SCRIPTS / "until.py")
    start = f"print([one.wait() for one in start({script!r}, {str(flag)!r})])"

    assert "[0, 0]" in kernel.run(f"%%memwatch -o other --no-ranks\n{start}").text()
    assert value_of(kernel, "other.run") is None


def test_ranks_outlive_the_extension_and_the_kernel(kernel: Kernel, tmp_path: Path) -> None:
    """They keep writing after `%unload_ext` and after a restart; the new kernel shows them live."""
    run, flag = tmp_path / "run", tmp_path / "flag"
    kernel.run(BEHIND)
    start = f"ranks = start({str(SCRIPTS / 'until.py')!r}, {str(flag)!r})"
    begun = kernel.run(f"%%memwatch -o s --ranks {run}\n{start}\nwait({str(run)!r})")
    unloaded = kernel.run("%unload_ext hfmem_widget")
    known = value_of(kernel, "[len(s.run.ranks), [one.poll() for one in ranks]]")
    kernel.restart()
    kernel.run("%load_ext hfmem_widget\nimport json")
    written = newest(run)
    opened = kernel.run(f"%memwatch open {run} -o back")
    live = kernel.wait_for(tells_of_ranks)
    is_running = value_of(kernel, "back.running")
    goes_on = waited_for(lambda: newest(run) > written)
    flag.touch()
    card = kernel.wait_for(is_card)

    assert [one.status for one in (begun, unloaded, opened)] == ["ok"] * 3
    assert known == [2, [None, None]]
    assert is_running
    assert live in kernel.published
    assert goes_on
    assert "2 ranks" in card.content["data"]["text/plain"]


def test_an_interrupt_ends_the_ranks_as_it_would(launched: tuple[Kernel, Result]) -> None:
    """The children end, the environment is restored, and the card says "interrupted"."""
    kernel, _ = launched
    kernel.run(
        "import signal\n"
        "def endless():\n"
        "    from accelerate import Accelerator\n"
        "    Accelerator(cpu=True)\n"
        "    time.sleep(600)"
    )
    first = len(kernel.published)
    launch = f"notebook_launcher(endless, num_processes=2, use_port={free_port()!r})"
    result = kernel.run(
        f"%%memwatch -o interrupted\n{launch}",
        interrupt_once=lambda: any(map(tells_of_ranks, kernel.published[first:])),
    )

    assert result.status == "error"
    assert value_of(kernel, "variables() == before")
    assert value_of(kernel, "len(interrupted.run.ranks)") == 2
    assert value_of(kernel, "[one.kind for one in interrupted.run.findings]") == []
    assert "memwatch:" not in result.text("stderr")
