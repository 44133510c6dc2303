"""Front ends other than JupyterLab, where the Python that ``HFMEM_HOSTS`` names has them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Self

from tests.browser.jupyter import ROOT, TIMEOUT

PYTHON = os.environ.get("HFMEM_HOSTS", "")


def program(module: str, *options: str) -> tuple[str, ...]:
    """Return what begins the command line of a Jupyter server of another front end."""
    return (PYTHON, "-m", module, *options)


class Marimo:
    """A server of marimo, in an empty folder, on a notebook of this code."""

    def __init__(self, home: Path, notebook: str) -> None:
        self.folder = home
        (home / "notebook.py").write_text(notebook, encoding="utf-8")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/"
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home), "PYTHONPATH": path}
        options = ("edit", "notebook.py", "--headless", "--no-token", f"--port={port}")
        with (home / "server.log").open("wb") as log:
            self._process = subprocess.Popen(
                program("marimo", *options), cwd=home, env=env, stdout=log, stderr=log
            )
        deadline = time.monotonic() + TIMEOUT
        while not _listens(port):
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(TIMEOUT)
        shutil.rmtree(self.folder / "__marimo__", ignore_errors=True)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
