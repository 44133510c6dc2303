"""Ranks, and what becomes of each: ``fates.py FOLDER``, or ``fates.py FATE PORT`` for one alone.

``FOLDER/fates.json`` has the fate, the port and the run of each. They are forked, so that torch is imported
once, and ``FOLDER/ends.json`` has how they ended: exit code, stdout and stderr.
"""

import contextlib
import gc
import json
import os
import resource
import shutil
import signal
import sys
import time
from pathlib import Path

import torch.distributed as dist


def forked(folder: Path) -> list[str]:
    """Return a fate and its port in each child; the parent waits for all of them, and ends."""
    children = []
    gc.freeze()  # each looks at its own objects alone when it ends
    for fate, port, run in json.loads((folder / "fates.json").read_text()):
        out, err = os.pipe(), os.pipe()
        child = os.fork()
        if not child:
            os.dup2(out[1], 1)
            os.dup2(err[1], 2)
            os.environ["HFMEM_RUN"] = run
            return [fate, port]
        os.close(out[1])
        os.close(err[1])
        children.append((child, out[0], err[0]))
    ends = [
        (os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), Path(f"/dev/fd/{out}").read_text(),
         Path(f"/dev/fd/{err}").read_text())
        for child, out, err in children
    ]  # fmt: skip
    (folder / "ends.json").write_text(json.dumps(ends))
    sys.exit()


fate, port = sys.argv[1:] if len(sys.argv) > 2 else forked(Path(sys.argv[1]))
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
dist.init_process_group("gloo", rank=0, world_size=1)
run = Path(os.environ["HFMEM_RUN"])
while fate != "ends" and not any(  # it writes within a second
    b'"span"' in each.read_bytes() for each in run.glob("*.jsonl")
):
    time.sleep(0.01)
if fate == "raises":
    raise ValueError("mine")
if fate == "is interrupted":
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)
if fate == "is terminated":
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
if fate == "exits with a code":
    sys.exit(3)
if fate == "exits with a sentence":
    sys.exit("the data are gone")
if fate == "would have left":
    with contextlib.suppress(SystemExit):
        sys.exit(4)
if fate == "finds its disk full":
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    time.sleep(2.5)
if fate == "leaves at once":
    os._exit(5)
if fate == "becomes another":
    os.execv(sys.executable, [sys.executable, sys.argv[0], "ends", port])
if fate == "forks":
    child = os.fork()
    if not child:
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
if fate == "joins again":
    try:
        dist.init_process_group("gloo", rank=0, world_size=1)
    except ValueError:
        dist.destroy_process_group()
        dist.init_process_group("gloo", rank=0, world_size=1)
if fate == "loses its directory":
    shutil.rmtree(run)
    time.sleep(1.5)
print("to the end")
