"""What some code does in an interpreter of its own, and which modules it loads."""

from __future__ import annotations

import subprocess
import sys


def run_alone(code: str, *flags: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Return what a fresh interpreter has written; without `check` it may fail."""
    command = [sys.executable, *flags, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=check)


def loaded_by(code: str) -> set[str]:
    """Return the modules that a fresh interpreter has loaded after some code."""
    return set(run_alone(f"{code}\nimport sys; print(*sys.modules)").stdout.split())
