"""`%memanatomy` in a real kernel: the owners of memory, a cell's parts, and maps of the heap."""

import re

import pytest

from tests.kernel.conftest import StartKernel
from tests.kernel.drive import Kernel, Message, Result

WITH_TORCH = True
LOAD = "%load_ext hfmem_widget"
WATCH = """%%memwatch --label blocks --no-chart --interval 0.02 --output session
import time
def be_seen():
    enough = session.polling.ticks + 2
    while session.polling.ticks < enough: time.sleep(0.01)
blocks = [bytearray(1_000_000) for _ in range(60)]
be_seen()
del blocks[20:]
be_seen()
"""
# A session with steps and parts, in the place of a watched one.
SCRIPTED = """
from tests.scenes import scripted_run
from hfmem_widget.analysis.history import HISTORY
HISTORY.latest = scripted_run({name!r})
"""


def columns(result: Result) -> list[str]:
    return re.split(r"  +", result.shown["text/plain"].splitlines()[2])


def test_it_shows_the_watched_cell_at_its_end_and_at_its_peak(kernel: Kernel) -> None:
    """On the CPU: private memory, the resident set, and the unexplained part."""
    # Its own kernel: a heap that other tests have used may shrink within the cell.
    kernel.run(LOAD)
    kernel.run(WATCH)
    bundle = kernel.run("%memanatomy").shown
    assert set(bundle) == {"text/html", "text/plain"}
    title, device, head, *rows = bundle["text/plain"].splitlines()
    assert title == "blocks"
    assert device.startswith("cpu ")
    *names, share = re.split(r"  +", head)
    assert names == ["part", "at the end", "at the peak (sampled)"]
    assert re.fullmatch(r"of [\d.]+ GiB", share)
    heap = next(row for row in rows if row.startswith("private memory"))
    end, peak = (float(one) for one in re.findall(r"([\d.]+) MiB", heap))
    assert 25 < peak - end < 50
    assert bundle["text/html"].count('<svg role="img"') == 2


def test_it_shows_a_cell_that_is_still_running(reloaded: Kernel) -> None:
    """Within a watched cell, it shows the cell at that moment."""
    code = "import time; time.sleep(0.2); get_ipython().run_line_magic('memanatomy', 'now')"
    result = reloaded.run(f"%%memwatch --no-chart --label live\n{code}")
    texts = [one.content["data"]["text/plain"] for one in result.displays]
    (anatomy,) = [one for one in texts if one.startswith("live\ncpu ")]
    assert re.split(r"  +", anatomy.splitlines()[2])[:2] == ["part", "now"]


@pytest.mark.parametrize(
    ("name", "line", "devices", "moment"),
    [
        ("steps", "peak", ["cuda:0"], "at the peak (exact)"),
        ("steps", "37", ["cuda:0"], "at step 37 (exact)"),
        ("steps", "--device cpu", ["cpu"], "at the end"),
        ("eight gpus", "--all peak", [f"cuda:{at}" for at in range(8)], "at the peak (exact)"),
    ],
)
def test_a_moment_and_devices_can_be_chosen(
    reloaded: Kernel, name: str, line: str, devices: list[str], moment: str
) -> None:
    """`peak` or a step's number chooses the moment; a name or `--all` chooses devices, in order."""
    reloaded.run(SCRIPTED.format(name=name))
    result = reloaded.run(f"%memanatomy {line}")

    assert re.findall(r"^(cuda:\d|cpu) ", result.shown["text/plain"], re.MULTILINE) == devices
    assert columns(result)[:2] == ["part", moment]


def test_now_needs_no_watch(reloaded: Kernel) -> None:
    """A reading shows a model that is in a variable."""
    reloaded.run("import torch; model = torch.nn.Linear(2048, 2048)")

    for line in ("%memanatomy", "%memanatomy now"):
        assert "weights" in reloaded.run(line).shown["text/plain"]


HEAP = "kept = [bytearray(40_000) for _ in range(2000)]\nkept = kept[::2]"
"""40 MB free in holes of 40 kB between as many in use."""

GROWS = """
%%memwatch --map --label heap --output grown
import os, time
kept = []
while not os.path.exists("seen"):
    kept += [bytearray(40_000) for _ in range(100)]
    time.sleep(0.1)
del kept
"""


@pytest.fixture(scope="module")
def grown(shared_kernel: Kernel) -> tuple[Result, float]:
    """Return the outputs of a watched cell whose heap grew until two maps were shown, and its seconds."""
    shared_kernel.run("%reload_ext hfmem_widget")
    (shared_kernel.folder / "seen").unlink(missing_ok=True)
    running = shared_kernel.send(GROWS.strip())
    for _ in range(2):
        shared_kernel.wait_for(is_map)
    (shared_kernel.folder / "seen").touch()
    result = shared_kernel.collect(running)
    return result, float(shared_kernel.run("print(grown.spans[0].duration)").text())


def is_map(message: Message) -> bool:
    return str(message.content.get("data", {}).get("text/plain", "")).startswith("cpu")


def maps(result: Result) -> list[str]:
    """Return the plain text of the maps that a cell showed, in order."""
    return [one.content["data"]["text/plain"] for one in filter(is_map, result.displays)]


def test_the_map_of_the_heap_has_its_parts(kernel: Kernel) -> None:
    """Free memory between used blocks is shown, in text and in a picture."""
    kernel.run(LOAD)
    kernel.run(HEAP)
    result = kernel.run("%memanatomy --layout")
    assert result.status == "ok"
    (bundle,) = [one.content["data"] for one in result.displays]
    assert set(bundle) == {"text/html", "text/plain"}
    free = next(line for line in bundle["text/plain"].splitlines() if "within the heap" in line)
    assert float(free.split()[1]) > 35
    assert "<svg" in bundle["text/html"]
    assert "<script" not in bundle["text/html"]


def test_it_loads_nothing_heavy(start_kernel: StartKernel) -> None:
    """`%memanatomy --layout` imports neither torch nor plotly."""
    kernel = start_kernel()
    kernel.run(LOAD)
    kernel.run("%memanatomy --layout")
    result = kernel.run("import sys; print({'torch', 'plotly'} & set(sys.modules))")
    assert result.text() == "set()\n"


def test_a_watched_cell_shows_a_live_map(grown: tuple[Result, float]) -> None:
    """It is refreshed in its own place while the cell runs, at most once a second, and names that cell."""
    result, seconds = grown
    assert result.status == "ok"
    shown = list(filter(is_map, result.displays))
    assert {one.kind for one in shown} == {"update_display_data"}
    assert len({one.content["transient"]["display_id"] for one in shown}) == 1
    # Those of the running cell, and the one at its end.
    assert 3 <= len(shown) <= seconds + 2
    assert len(set(maps(result))) == len(shown)


def test_a_cell_that_clears_its_output_gets_the_map_at_the_end(reloaded: Kernel) -> None:
    """After `clear_output` there is no live map; the last one is a new output, the cell's last."""
    result = reloaded.run(
        "%%memwatch --map\nimport time\nfrom IPython.display import clear_output\n"
        "time.sleep(0.3); clear_output()\nfor _ in range(25): time.sleep(0.1); x = bytearray(10**6)"
    )
    cleared = next(at for at, one in enumerate(result.outputs) if one.kind == "clear_output")
    later = [(one.kind, one.content.get("data", {})) for one in result.outputs[cleared:]]
    after = [kind for kind, data in later if data.get("text/plain", "").startswith("cpu")]
    # A refresh of another thread may have been under way; front ends drop it.
    assert after in (["display_data"], ["update_display_data", "display_data"])


def test_a_failing_cell_fails_as_it_would(reloaded: Kernel) -> None:
    """The error is the cell's own, and the map is shown below it."""
    result = reloaded.run("%%memwatch --map\n1 / 0")
    assert result.status == "error"
    assert [one.content["ename"] for one in result.errors] == ["ZeroDivisionError"]
    assert maps(result)


MODEL = """
import torch
def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 256))
def train(model, optimizer, steps=4):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 256)).square().mean().backward()
        optimizer.step()
def size(tensors):
    return sum(tensor.nbytes for tensor in tensors)
def held(sample, session, names=("weights", "gradients", "optimizer")):
    return [session.value(sample, f"cpu/{name}") for name in names]
"""


@pytest.fixture
def notebook(reloaded: Kernel) -> Kernel:
    """Return the file's kernel with a training, without models of the test before."""
    reloaded.run(MODEL)
    reloaded.run("import gc; _ = gc.collect()")
    return reloaded


def test_torch_imported_in_the_cell_is_followed(kernel: Kernel) -> None:
    """The loop of a cell that imports torch itself is attributed by its optimizer's steps."""
    kernel.run("%load_ext hfmem_widget")
    kernel.run(
        "%%memwatch -q -o session\n"
        + MODEL
        + "import hfmem_widget\n"
        + "def run():\n"
        + "    model = build(); optimizer = torch.optim.AdamW(model.parameters())\n"
        + "    train(model, optimizer)\n"
        + "    with hfmem_widget.span('look'): pass\n"
        + "    return size(model.parameters())\n"
        + "expected = run()"
    )

    result = kernel.run(
        "look = [one for one in session.spans if one.label == 'look'][0]\n"
        "print(held(look.after, session)[:2] == [expected, expected])"
    )
    assert result.text() == "True\n"


def test_reloading_leaves_no_hook(notebook: Kernel) -> None:
    """After `%unload_ext` torch has none of our hooks, and `zero_grad` is its own."""
    notebook.run("%memwatch on")
    notebook.run("model = build(); optimizer = torch.optim.AdamW(model.parameters())")
    notebook.run("train(model, optimizer)")
    notebook.run("%reload_ext hfmem_widget")
    notebook.run("%unload_ext hfmem_widget")

    result = notebook.run(
        "import sys\n"
        "module = sys.modules['torch.optim.optimizer']\n"
        "print(len(module._global_optimizer_pre_hooks), len(module._global_optimizer_post_hooks),\n"
        "      'surround' in repr(torch.optim.Optimizer.zero_grad.__code__.co_filename))"
    )
    assert result.text() == "0 0 False\n"


def test_a_compiled_step_is_left_alone(notebook: Kernel) -> None:
    """`torch.compile` of a loop with an optimizer traces no code of ours."""
    result = notebook.run(
        "%%memwatch -q\n"
        "model = build(); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "train(model, optimizer, 1)\n"
        "step = torch.compile(optimizer.step, backend='eager')\n"
        "before = model[0].weight.detach().clone()\n"
        "step()\n"
        "print(bool((before != model[0].weight).any()))"
    )
    assert result.text() == "True\n"
