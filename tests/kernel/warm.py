"""Kernels that begin with what their tests import anyway: copies of a process that has imported it.

What loading the package imports, and a kernel's own start, are for kernels that are no copies.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Self

from tests.browser import kernels

TRANSFORMERS = (
    "torch._dynamo",
    "accelerate",
    "transformers.core_model_loading",
    "transformers.models.bert.modeling_bert",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "transformers.trainer",
)

SERVE = """
import gc, importlib, sys
sys.path.insert(0, sys.argv[1])
import kernels
for name in (*kernels.IMPORTED, *sys.argv[3:]): importlib.import_module(name)
# Else the first collection of each copy copies every page.
gc.collect()
gc.freeze()
kernels.serve(sys.argv[2])
"""


class Warm:
    """A process of which kernels are copies.

    Parameters
    ----------
    home : Path
        An empty folder.
    *modules : str
        What it imports, besides what every kernel needs.

    Attributes
    ----------
    command : list of str
        What a kernel's specification says to run.
    """

    def __init__(self, home: Path, *modules: str) -> None:
        place = str(home / "kernels")
        file = Path(kernels.__file__)
        self.command = [sys.executable, "-S", "-E", str(file), "begin", place, "{connection_file}"]
        with (home / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", SERVE, str(file.parent), place, *modules],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | {"PYTHONPATH": str(file.parents[2])},
            )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", (home / "log").read_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
