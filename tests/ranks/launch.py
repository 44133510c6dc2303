"""Starts launchers with two ranks, and reads what the ranks have written."""

import os
import secrets
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import hfmem_widget
from hfmem_widget.ranks.directory import streams
from hfmem_widget.ranks.environment import Lent
from hfmem_widget.session import Session

SCRIPTS = Path(__file__).parent / "scripts"

BARE = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("HFMEM_", "PYTHON", "COV_"))
} | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
"""An environment as a terminal has it."""

TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port")


def followed(run: Path, environ: dict[str, str] | None = None) -> dict[str, str]:
    """Return an environment as the watched cell lends it to its children."""
    usual = dict(BARE if environ is None else environ)
    lent = Lent(run, environ=usual)
    assert lent.begin()
    children = dict(usual)
    lent.end()
    return children


def free_port() -> str:
    """Return a port that nobody listens at, and that nobody gets who asks for any.

    A launcher takes it seconds later: one that the system gives out may be somebody's connection by then.
    """
    given_out = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(given_out.read_text().split()[0]) if given_out.exists() else 32768
    while True:
        # pytest-randomly gives the tests that run beside each other the same random numbers.
        port = first - 1 - secrets.randbelow(first // 2)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return str(port)


def python(
    *words: object, environ: dict[str, str] | None = None, code: int | None = 0
) -> subprocess.CompletedProcess[str]:
    """Run this Python with some words, and require its exit code."""
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        env=BARE if environ is None else environ,
        capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    assert code is None or done.returncode == code, done.stderr[-3000:]
    return done


def sessions(run: Path) -> list[Session]:
    return [hfmem_widget.open(path) for path in streams(run).paths]
