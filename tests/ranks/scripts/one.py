"""One rank, and what becomes of it; that stands in the command."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import sys
import time

import torch.distributed as dist

fate = sys.argv[1]
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2])
dist.init_process_group("gloo", rank=0, world_size=1)
time.sleep(1.2)
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
    os.execv(sys.executable, [sys.executable, sys.argv[0], "ends", sys.argv[2]])
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
    shutil.rmtree(os.environ["HFMEM_RUN"])
    time.sleep(1.5)
print("to the end")
