from __future__ import annotations

import pytest

from tests.kernel.conftest import StartKernel
from tests.kernel.drive import Kernel


def test_outputs_come_in_the_order_of_the_cell(shared_kernel: Kernel) -> None:
    """A cell's prints, displays and value are all there, in order, as its own."""
    result = shared_kernel.run(
        "from IPython.display import HTML, display\n"
        "print('first')\n"
        "shown = display(HTML('<b>second</b>'), display_id=True)\n"
        "shown.update(HTML('<b>third</b>'))\n"
        "6 * 7"
    )
    assert result.status == "ok"
    assert [one.kind for one in result.outputs] == [
        "stream",
        "display_data",
        "update_display_data",
        "execute_result",
    ]
    assert result.text() == "first\n"
    assert result.value is not None
    assert result.value["text/plain"] == "42"


def test_cells_are_collected_in_any_order(shared_kernel: Kernel) -> None:
    """A reply that comes while another is waited for is there when it is asked for."""
    first, second = shared_kernel.send("1 + 1"), shared_kernel.send("2 + 2")
    values = [shared_kernel.collect(one).value for one in (second, first)]

    assert [value and value["text/plain"] for value in values] == ["4", "2"]


def test_interrupt_reaches_a_busy_cell(shared_kernel: Kernel) -> None:
    """An interrupt ends a busy cell with one KeyboardInterrupt, and the kernel goes on."""
    result = shared_kernel.run(
        "import time\nopen('busy', 'w').close()\nwhile True: time.sleep(0.01)",
        interrupt_once=shared_kernel.has_made("busy"),
    )
    assert result.status == "error"
    assert [one.content["ename"] for one in result.errors] == ["KeyboardInterrupt"]
    assert shared_kernel.run("'alive'").status == "ok"


def test_a_thread_speaks_while_a_cell_is_busy(start_kernel: StartKernel) -> None:
    """Comm messages of a thread are seen, with their buffers, before the cell that runs has ended."""
    kernel = start_kernel(env={"GREETING": "hello"})
    is_by_comm = "import comm, ipykernel.comm as own; assert issubclass(own.Comm, comm.BaseComm)"
    if kernel.run(is_by_comm).status == "error":
        pytest.skip("the comms of this ipykernel are not those of the package comm")
    running = kernel.send(
        "import os, threading, time\n"
        "from comm import create_comm\n"
        "comm = create_comm(target_name='test')\n"
        "data = {'text': os.environ['GREETING']}\n"
        "threading.Thread(target=lambda: comm.send(data, buffers=[b'12'])).start()\n"
        "while not os.path.exists('go'): time.sleep(0.01)\n"
    )
    seen = kernel.wait_for(lambda one: one.kind == "comm_msg")
    assert seen.content["data"] == {"text": "hello"}
    assert seen.buffers == (b"12",)
    (kernel.folder / "go").touch()
    result = kernel.collect(running)
    assert result.status == "ok"
    assert [one.kind for one in result.comms] == ["comm_open", "comm_msg"]
