"""Which modules some code loads."""

from __future__ import annotations

import subprocess
import sys


def loaded_by(code: str) -> set[str]:
    """Return the modules that a fresh interpreter has loaded after some code."""
    script = f"{code}\nimport sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(run.stdout.split())
