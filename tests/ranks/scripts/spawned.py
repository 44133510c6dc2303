"""Two processes of torch.multiprocessing; what rank 1 is to do, and how they begin, stands in the command."""

import contextlib
import os
import signal
import sys
import time

import torch
import torch.distributed as dist


def work(rank: int, port: str, fate: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    first = torch.tensor(os.getpid())
    dist.broadcast(first, 0)
    time.sleep(1.5)
    if rank == 0 or fate == "done":
        return
    # Whoever is still there when another fails is killed by the launcher.
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(int(first), 0)
            time.sleep(0.05)
    if fate == "raise":
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    if fate == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fate == "exit":
        os._exit(0)


if __name__ == "__main__":
    port, fate, method = sys.argv[1:]
    torch.multiprocessing.start_processes(work, (port, fate), nprocs=2, start_method=method)
