"""Code for notebooks that starts processes with GPUs of the stand-in driver library, like ranks."""

LAUNCH = '''
import contextlib, os, subprocess, sys, time
from pathlib import Path

RANK = """
import os, sys, time
from pathlib import Path
folder, device, steps, seconds, *until = sys.argv[1:]
folder, steps, until = Path(folder), int(steps), [Path(one) for one in until]
def times(what):
    file = folder / f"{what}.{device}"
    return file.stat().st_size if file.exists() else 0
held = folder / f"{device}.{os.getpid()}.0"
held.touch()
for step in range(1, steps + 1):
    held = held.rename(folder / f"{device}.{os.getpid()}.{15_872 * step // steps}")
    # Of three readings that end from now on, one also began and was followed up.
    readings, listings = times("readings") + 3, times("listings") + 1
    time.sleep(float(seconds) / steps)
# However busy the machine: what is held now is seen before it goes.
patience = time.monotonic() + 60
while time.monotonic() < patience:
    seen = times("readings") >= readings and times("listings") >= listings
    if seen and all(one.exists() for one in until):
        break
    time.sleep(0.01)
held.unlink()
"""

def launch(devices, *until, seconds=1.0, steps=8):
    """Start a process for each device, as notebook_launcher does, and wait for them.

    Each holds what it has until the driver was asked for it, and until these files are there.
    """
    folder = os.environ["NVML_STUB_PROCESSES"]
    command = [sys.executable, "-c", RANK, folder]
    ranks = [subprocess.Popen([*command, str(at), str(steps), str(seconds), *until]) for at in devices]
    for rank in ranks:
        rank.wait()
'''
"""`launch(devices)` of the notebook; its environment names the folder."""
