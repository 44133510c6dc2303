"""Code for notebooks: processes that use GPUs of the stand-in for the driver's library, as ranks do."""

from __future__ import annotations

LAUNCH = '''
import contextlib, os, subprocess, sys, time
from pathlib import Path

RANK = """
import os, sys, time
from pathlib import Path
folder, device, steps, seconds = Path(sys.argv[1]), *map(float, sys.argv[2:])
file = None
for step in range(1, int(steps) + 1):
    more = folder / f"{int(device)}.{os.getpid()}.{15_872 * step // int(steps)}"
    more.touch()
    if file is not None:
        file.unlink()
    file = more
    time.sleep(seconds / steps)
file.unlink()
"""

def launch(devices, seconds=2.0, steps=8):
    """Start a process for each device, as notebook_launcher does, and wait for them."""
    folder = os.environ["NVML_STUB_PROCESSES"]
    command = [sys.executable, "-c", RANK, folder]
    ranks = [subprocess.Popen([*command, str(at), str(steps), str(seconds)]) for at in devices]
    for rank in ranks:
        rank.wait()
'''
"""`launch(devices)` of the notebook; its environment names the folder."""
