"""Two GPUs or more: every figure belongs to the device that CUDA means by its number."""

import pytest

from tests.gpu.conftest import Run
from tests.gpu.notebook import execute, plain
from tests.gpu.scenarios import MODEL
from tests.ranks.launch import free_port

pytestmark = pytest.mark.usefixtures("two_gpus")

LOOK = """
import time, torch, hfmem_widget
GIB = 1 << 30

def rise(session, key):
    timeline = session.timeline
    column = session.index(key)
    return float(timeline.high[-1, column] - timeline.low[0, column])
"""


@pytest.mark.whole_card
def test_a_block_is_told_of_the_device_it_is_on(run_python: Run) -> None:
    """What is allocated on cuda:1 is in cuda:1's exact peak and in its device memory, and not in cuda:0's."""
    first, second, certainty, used = run_python.after(LOOK)("""
for index in range(2):
    torch.ones(1, device=f"cuda:{index}")
with hfmem_widget.watch(quiet=True) as session:
    time.sleep(0.3)
    torch.empty(3 * GIB, dtype=torch.uint8, device="cuda:0")
    kept = torch.empty(5 * GIB, dtype=torch.uint8, device="cuda:1")
    torch.cuda.empty_cache()
    time.sleep(0.3)
peaks = session.spans[0].peaks
report([peaks["cuda:0/allocated"].value, peaks["cuda:1/allocated"].value,
        peaks["cuda:1/allocated"].certainty,
        [rise(session, f"cuda:{index}/device_used") / GIB for index in range(2)]])
""")

    assert (first, second, certainty) == (3 * 2**30, 5 * 2**30, "exact")
    assert used[0] < 0.1
    assert used[1] == pytest.approx(5, abs=0.1)


def test_a_gpu_that_is_only_seen_is_not_read_until_it_is_used(run_python: Run) -> None:
    """Nor does watching open a context on it; the span in which it is first used has its exact peak."""
    unused, seen, had_context, used, peak = run_python(
        """
from collections import Counter
import time, torch
read = Counter()
statistics = torch._C._cuda_memoryStats

def counted(device):
    read[device] += 1
    return statistics(device)

torch._C._cuda_memoryStats = counted
torch.ones(1, device="cuda:0")
import hfmem_widget
with hfmem_widget.watch(quiet=True) as session:
    time.sleep(0.5)
    with hfmem_widget.span("on the first"):
        torch.ones(1 << 20, device="cuda:0")
    unused, seen = read[1], read[0]
    had_context = torch._C._cuda_hasPrimaryContext(1)
    with hfmem_widget.span("on the second"):
        torch.empty(3 << 30, dtype=torch.uint8, device="cuda:1")
    time.sleep(0.3)
peak = session.spans[-1].peaks["cuda:1/allocated"]
report([unused, seen, had_context, read[1], [peak.value, peak.certainty]])
"""
    )

    assert (unused, had_context) == (0, False)
    assert seen > 2
    assert used > 2
    assert peak == [3 * 2**30, "exact"]


@pytest.mark.parametrize("when", ["before CUDA is up", "after"])
def test_an_order_of_the_users_own_is_followed(run_python: Run, when: str) -> None:
    """With CUDA_VISIBLE_DEVICES=1,0 the driver's second GPU is cuda:0, in the charts too."""
    begin = "" if when.startswith("before") else "torch.ones(1, device='cuda:0')\n"
    used, uuids, expected = run_python.after(
        "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '1,0'\n" + LOOK + begin
    )("""
import pynvml
with hfmem_widget.watch(quiet=True) as session:
    time.sleep(0.3)
    kept = torch.empty(4 * GIB, dtype=torch.uint8, device="cuda:0")
    time.sleep(0.5)
pynvml.nvmlInit()
uuids = [pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in (1, 0)]
known = {device.key: device.uuid for device in session.devices}
report([[rise(session, f"cuda:{index}/device_used") / GIB for index in range(2)],
        [known["cuda:0"], known["cuda:1"]], uuids])
""")

    assert uuids == expected
    assert used[0] > 3.99
    assert used[1] < 1.5  # where CUDA came up in the block, its context is on one of them only


def test_one_gpu_named_by_its_uuid_is_the_only_one(run_python: Run) -> None:
    """CUDA_VISIBLE_DEVICES with the beginning of the second GPU's UUID leaves one device: that one."""
    keys, uuid, expected = run_python(
        """
import os, pynvml
pynvml.nvmlInit()
expected = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(1))
os.environ["CUDA_VISIBLE_DEVICES"] = expected[:12]
"""
        + LOOK
        + """
with hfmem_widget.watch(quiet=True) as session:
    torch.ones(1, device="cuda:0")
    time.sleep(0.3)
report([[one.key for one in session.devices], session.devices[0].uuid, expected])
"""
    )

    assert keys == ["cuda:0", "cpu"]
    assert uuid == expected


PARALLEL = (
    MODEL
    + """
model = torch.nn.DataParallel(make_model(4))
optimizer = torch.optim.AdamW(model.parameters())

def train():
    for tokens in (64, 384, 200):
        batch = batch_of(tokens, 8)
        model(**batch).loss.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
"""
)


def test_data_parallel_is_exact_on_both(run_python: Run) -> None:
    """Replicas' threads allocate on both devices; each peak is the one of the same training without us."""
    bare = run_python(
        PARALLEL
        + "train()\n[torch.cuda.reset_peak_memory_stats(i) for i in range(2)]\ntrain()\n"
        + "report([torch.cuda.max_memory_allocated(i) for i in range(2)])\n"
    )
    watched = run_python.after("import hfmem_widget\n" + PARALLEL)("""
train()
with hfmem_widget.watch(quiet=True) as session:
    train()
peaks = [session.spans[0].peaks[f"cuda:{index}/allocated"] for index in range(2)]
report([peak.value for peak in peaks] + [peak.certainty for peak in peaks])
""")

    assert watched == [*bare, "exact", "exact"]


def test_a_model_split_over_both_has_its_weights_on_each(run_python: Run) -> None:
    """`device_map="auto"` within our `max_memory`: the parts of each device are its storages, to the byte."""
    counted, expected, fits = run_python(
        """
import tempfile, torch, hfmem_widget
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
folder = tempfile.mkdtemp()
GPT2LMHeadModel(GPT2Config(n_embd=1024, n_layer=12, n_head=16)).save_pretrained(folder)
memory = hfmem_widget.max_memory()
room = {index: 500 << 20 for index in range(2)} | {"cpu": memory["cpu"]}
with hfmem_widget.watch(quiet=True) as session:
    model = AutoModelForCausalLM.from_pretrained(folder, device_map="auto", max_memory=room)
    ids = torch.randint(1000, (2, 64), device="cuda:0")
    with torch.no_grad():
        model(ids)
def bytes_of(tensors, index):
    on = [one for one in tensors if one.device == torch.device("cuda", index)]
    return sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in on}.values())
counted = [session.value(session.spans[0].after, f"cuda:{index}/weights") for index in range(2)]
report([counted, [bytes_of(model.parameters(), index) for index in range(2)],
        [memory[index] > 0.8 * torch.cuda.get_device_properties(index).total_memory for index in range(2)]])
"""
    )

    assert counted == expected
    assert min(expected) > 0
    assert fits == [True, True]


@pytest.mark.whole_card
def test_the_ranks_of_a_notebook_launcher_are_named_as_children() -> None:
    """The card of the cell leads with the devices that they filled; of this process there is nothing."""
    notebook = execute(
        "%load_ext hfmem_widget",
        """
import time, torch
from accelerate import notebook_launcher

def fill():
    import os
    held = torch.empty(2 * 2**30, dtype=torch.uint8, device=f"cuda:{os.environ['LOCAL_RANK']}")
    time.sleep(2)
""",
        (
            "%%memwatch --label ranks --no-chart\n"
            f"notebook_launcher(fill, num_processes=2, use_port={free_port()!r})"
        ),
    )
    lines = plain(notebook.cells[-1]).splitlines()
    summary = next(line for line in lines if line.startswith('memwatch "ranks"'))

    # 2 GiB and a CUDA context each, by the driver's own process list.
    assert "2 devices rose by 2." in summary
    assert "by 2 child processes; this process used no GPU" in summary
