"""Runs code in a new interpreter, and lists the modules that it loads."""

import subprocess
import sys


def run_alone(code: str, *flags: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Return the output of a new interpreter; without `check` it may fail."""
    command = [sys.executable, *flags, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=check)


def loaded_by(code: str) -> set[str]:
    return set(run_alone(f"{code}\nimport sys; print(*sys.modules)").stdout.split())
