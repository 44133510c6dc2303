"""Two ranks that end their steps together; the clock of the second one's host is five seconds ahead."""

import multiprocessing
import os
import socket
import time
from typing import Any

import hfmem_widget

STEPS = 12


def work(rank: int, together: Any) -> None:
    if rank:
        usual = time.time
        time.time = lambda: usual() + 5.0
        socket.gethostname = lambda: "ahead"
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2"}
    hfmem_widget.follow()
    for _ in range(STEPS):
        with hfmem_widget.span("step"):
            time.sleep(0.1)
            together.wait()


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(2)
    ranks = [context.Process(target=work, args=(rank, together)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
