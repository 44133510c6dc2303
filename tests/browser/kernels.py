"""Kernels that begin soon: each is a copy of one process, which has imported what all of them need.

To a Jupyter server such a kernel is the process that it started, which stands in for the copy: a signal that
is sent to one reaches the other, and neither outlives the other.
"""

import gc
import importlib
import json
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

# What a kernel and a widget of any package import.
IMPORTED = (
    "IPython.core.completer",
    "anywidget",
    "ipykernel.ipkernel",
    "ipykernel.kernelapp",
    "ipywidgets",
    "msgspec",
    "numpy",
    "psutil",
    "pynvml",
    "widgetsnbextension",
)
# What else a first watch imports, of ours; a kernel has loaded and watched nothing yet.
FOR_WATCHES = (
    "hfmem_widget.drivers.watch",
    "hfmem_widget.features.leaks.companion",
    "hfmem_widget.features.memory_map.holes",
    "hfmem_widget.features.ranks.companion",
    "hfmem_widget.magics.reports",
    "hfmem_widget.view.card",
    "hfmem_widget.view.chart.figure",
    "hfmem_widget.view.live",
    "hfmem_widget.view.line",
    "hfmem_widget.view.wire.publisher",
    "hfmem_widget.view.wire.widget",
)
# What else the notebooks that train import for the longest. What asks whether it is in a notebook as it is
# imported, as transformers and tqdm do, is left to the kernel.
FOR_TRAINING = (
    "torch",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.tensor",
    "torch.export",
)
LOOK = 0.1
"""Seconds between looks at whether a kernel has ended."""


class Kernels:
    """The process that kernels are copies of.

    `name` is what a notebook calls them, and what files in `home` are called; `also` are modules that it
    imports besides. Once it was started, `command` is the command line that begins a kernel.
    """

    def __init__(self, home: Path, name: str, *also: str) -> None:
        self.name = name
        self._place = str(home / name)
        self._log = home / f"{name}.log"
        self._also = also
        begin = ["begin", self._place, "{connection_file}"]
        self.command = [sys.executable, "-S", "-E", __file__, *begin]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()

    def start(self) -> None:
        """Have everything imported, unless it is already."""
        if self._process is None:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    [sys.executable, __file__, "serve", self._place, *self._also],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                )
            assert self._process.stdout is not None
            assert self._process.stdout.readline() == b"ready\n"


def begin(place: str, connection_file: str) -> int:
    """Have a kernel begin, and stand in for it until it ends."""
    request = {"file": connection_file, "folder": os.getcwd(), "env": dict(os.environ)}  # noqa: PTH109
    with socket.socket(socket.AF_UNIX) as other:
        other.connect(place)
        other.sendall(json.dumps(request).encode() + b"\n")
        answers = other.makefile()
        pid = int(answers.readline())
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, lambda number, _: os.kill(pid, number))
        return int(answers.readline() or 1)


def serve(place: str, *also: str) -> None:
    """Make copies of this process, one for each that asks."""
    # A kernel ends when its parent does, of which ipykernel reads as it is imported.
    os.environ["JPY_PARENT_PID"] = str(os.getpid())
    for name in (*IMPORTED, *also):
        importlib.import_module(name)
    # Else the first collection of each copy would copy every page.
    gc.collect()
    gc.freeze()
    kernels: dict[socket.socket, int] = {}
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as all_:
        listener.bind(place)
        listener.listen()
        all_.register(listener, selectors.EVENT_READ)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        os.dup2(2, 1)
        while True:
            for key, _ in all_.select(LOOK):
                if key.fileobj is listener:
                    client, _ = listener.accept()
                    request = json.loads(client.makefile().readline())
                    pid = os.fork()
                    if pid == 0:
                        all_.close()
                        for one in (listener, client, *kernels):
                            one.close()
                        run(request)
                    client.sendall(f"{pid}\n".encode())
                    kernels[client] = pid
                    all_.register(client, selectors.EVENT_READ)
                else:
                    # Nothing is said after the first line: who stood in for the kernel was killed.
                    closed = key.fileobj
                    assert isinstance(closed, socket.socket)
                    all_.unregister(closed)
                    os.kill(kernels[closed], signal.SIGKILL)
            for client, pid in list(kernels.items()):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    end(client, os.waitstatus_to_exitcode(status), all_)
                    del kernels[client]


def end(client: socket.socket, code: int, all_: selectors.BaseSelector) -> None:
    """Tell who stands in for a kernel that it has ended."""
    if client in all_.get_map():
        all_.unregister(client)
        client.sendall(f"{abs(code)}\n".encode())
    client.close()


def run(request: dict[str, Any]) -> None:
    """Be a kernel, in a process that is a copy."""
    from ipykernel import kernelapp

    code = 1
    try:
        os.setsid()
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["env"])
        random.seed()
        sys.argv = ["ipykernel_launcher.py", "-f", request["file"]]
        sys.path.remove(str(Path(__file__).parent))
        kernelapp.launch_new_instance()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(*sys.argv[2:])
    else:
        sys.exit(begin(*sys.argv[2:]))
