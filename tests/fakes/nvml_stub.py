"""Builds the stand-in for libnvidia-ml, for subprocesses that find it by `LD_LIBRARY_PATH`."""

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("libnvidia-ml.c")


class NoCompilerError(Exception):
    """Raised if there is no C compiler."""


def build_stub(directory: Path) -> Path:
    """Compile ``libnvidia-ml.so.1`` into a directory and return its path.

    Raises
    ------
    NoCompilerError
        Where neither ``cc`` nor ``gcc`` is found.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise NoCompilerError("the NVML stub needs a C compiler, and neither cc nor gcc is here")
    library = directory / "libnvidia-ml.so.1"
    flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(
        [compiler, *flags, "-D_POSIX_C_SOURCE=200809L", "-o", library, SOURCE],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return library


def stub_or_skip(directory: Path) -> Path:
    """Return the directory with the stand-in; skip the test if there is no compiler."""
    try:
        return build_stub(directory).parent
    except NoCompilerError as missing:
        pytest.skip(str(missing))
