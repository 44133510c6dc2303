"""Loading, unloading, forking and exiting leave nothing behind."""

from tests.data.modules import run_alone
from tests.kernel.drive import Kernel

INVENTORY = """
def open_files():
    # Sockets, pipes and files in its own folder come and go with the kernel's business.
    import os
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sorted(one for one in map(os.readlink, filter(os.path.isfile, links)) if "tmp" not in one)

def inventory():
    import sys, threading
    ip = get_ipython()
    hooks = {name: len(calls) for name, calls in ip.events.callbacks.items()}
    return (
        sorted(thread.name for thread in threading.enumerate() if "hfmem" in thread.name),
        open_files(),
        hooks,
        len(ip.input_transformers_cleanup),
        sorted(name for kind in ("line", "cell") for name in ip.magics_manager.magics[kind] if "mem" in name),
        len(ip.Completer.custom_matchers),
        {"MemwatchMagics", "ReportMagics"} & set(ip.magics_manager.registry),
    )
"""


RELOAD = """
def reload(times):
    ip = get_ipython()
    for _ in range(times):
        ip.run_line_magic("reload_ext", "hfmem_widget")
        ip.run_cell("%%memwatch -q\\npass")
    ip.run_line_magic("reload_ext", "hfmem_widget")
"""


def test_loading_twice_is_harmless(reloaded: Kernel) -> None:
    """A second `%load_ext` says so and changes nothing."""
    reloaded.run(INVENTORY + "once = inventory()")
    reloaded.run("%load_ext hfmem_widget")

    assert reloaded.run("print(inventory() == once)").text() == "True\n"


def test_reloads_leave_no_thread_file_hook_or_wrapper(kernel: Kernel) -> None:
    """Repeated loading, watching and reloading ends where it began."""
    kernel.run("import torch\n" + INVENTORY + RELOAD)
    kernel.run("bare = inventory()\noriginals = dict(vars(torch._C))")
    kernel.run("%load_ext hfmem_widget\nreload(2)\nloaded = inventory()")
    kernel.run("reload(10)")

    assert kernel.run("print(inventory() == loaded, inventory(), loaded)").text().startswith("True")
    kernel.run("%unload_ext hfmem_widget")
    assert kernel.run("print([a for a, b in zip(inventory(), bare) if a != b])").text() == "[]\n"
    wrapped = "print([key for key, one in vars(torch._C).items() if originals.get(key) is not one])"
    assert kernel.run(wrapped).text() == "[]\n"
    assert kernel.run("%%memwatch\n1").status == "error"


def test_unloading_while_watching_ends_the_watch(reloaded: Kernel) -> None:
    """`%unload_ext` within a watched notebook stops the poller."""
    reloaded.run("%memwatch on")
    reloaded.run(INVENTORY)
    result = reloaded.run("%unload_ext hfmem_widget\nprint(inventory()[0], inventory()[4])")

    assert result.status == "ok"
    assert result.text() == "[] []\n"


FORKS = """
import os, sys, time
import hfmem_widget
with hfmem_widget.watch("forks", interval=0.01, quiet=True) as session:
    for number in range(40):
        pid = os.fork()
        if pid == 0:
            # A child may watch for itself, and leave its parent's block, without a hang.
            if number % 10 == 0:
                with hfmem_widget.watch("child", interval=0.01, quiet=True):
                    time.sleep(0.02)
            os._exit(7)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 7
print(session.polling.ticks > 3, session.notes)
"""


def test_forks_while_polling() -> None:
    """Every child ends by itself, and the parent continues to poll."""
    done = run_alone(FORKS, "-W", "ignore::DeprecationWarning", check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("True")


def test_a_child_that_leaves_its_parents_block_is_quiet() -> None:
    """A forked child that runs on past the `with` exits with its own status and prints nothing."""
    script = """
import os, sys, time
import hfmem_widget
with hfmem_widget.watch("parent", interval=0.01) as session:
    pid = os.fork()
    time.sleep(0.05)
if pid == 0:
    sys.exit(5)
_, status = os.waitpid(pid, 0)
sys.exit(os.waitstatus_to_exitcode(status))
"""
    done = run_alone(script, "-W", "ignore::DeprecationWarning", check=False)

    assert (done.returncode, done.stderr) == (5, "")
    assert done.stdout.count('memwatch "parent"') == 1


def test_watched_cells_leave_no_widget_and_no_open_comm(reloaded: Kernel) -> None:
    """Nor does `%memwatch on`: no live chart and no layout stays."""
    reloaded.run("""
import ipywidgets
comms = get_ipython().kernel.comm_manager.comms
def left():
    return len(ipywidgets.Widget.get_manager_state()["state"]), len(comms)
seen = []
""")
    before = reloaded.run("print(left())").text()
    for _ in range(3):
        reloaded.run(
            "%%memwatch\nimport time\nuntil = time.monotonic() + 60\n"
            "while not left()[0] and time.monotonic() < until: time.sleep(0.05)\nseen.append(left()[0])"
        )
    reloaded.run("%memwatch on")
    reloaded.run("seen.append(left()[0])")
    reloaded.run("%memwatch off")

    assert reloaded.run("print(all(seen), left())").text() == f"True {before}"


CLOSED = """%%memwatch --label closed --output session
import time
from ipywidgets.widgets import widget as module
widgets = module._instances if hasattr(module, "_instances") else module.Widget.widgets
ours = []
while not ours:
    time.sleep(0.05)
    ours = [widget for widget in list(widgets.values()) if type(widget).__name__ == "MemoryWidget"]
for widget in ours:
    widget.close()
enough = session.polling.ticks + 20
while session.polling.ticks < enough:
    time.sleep(0.05)
"""


def test_a_widget_closed_while_it_is_fed_harms_nothing(reloaded: Kernel) -> None:
    """The poller finds no comm and continues; the card appears, and nothing is printed."""
    result = reloaded.run(CLOSED)

    assert result.status == "ok"
    assert result.text("stderr") == ""
    texts = [one.content["data"].get("text/plain", "") for one in result.displays]
    assert any(text.startswith('memwatch "closed" · ') for text in texts)
    assert reloaded.run("print(len(ours), [widget.comm for widget in ours])").text() == "1 [None]\n"
