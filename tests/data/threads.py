"""Runs work on threads of its own."""

import threading
from collections.abc import Callable


def on_threads(*works: Callable[[], object]) -> None:
    """Run each function on a thread of its own, all at once, and wait for them."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
