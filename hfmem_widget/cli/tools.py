"""The tools of Jupyter's agents, found by the entry point ``jupyter_server_mcp.tools``.

Each runs a command of ``hfmem`` in its own process, so the server imports nothing heavy and keeps nothing.
"""

import subprocess
import sys

TOOLS = [
    f"{__name__}:{name}" for name in ("hfmem_explain", "hfmem_check", "hfmem_compare", "hfmem_fit")
]

PATIENCE = 120.0  # seconds


def hfmem_explain(run: str) -> str:
    """Show where the memory of a recorded run went: peaks, parts, findings with advice, changes that fit.

    `run` is the path of an .hfmem.jsonl recording, the directory of a run, or a snapshot of torch. Returns
    JSON; sizes are bytes.
    """
    return _answer("explain", "--json", "--", run)


def hfmem_check(run: str) -> str:
    """Show what a recording contains, and what is damaged or missing. Returns JSON."""
    return _answer("check", "--json", "--", run)


def hfmem_compare(base: str, head: str, fail_over: str = "2%") -> str:
    """Compare the memory of two recordings, and judge whether `head` takes too much more than `base`.

    The limit, `fail_over`, is a share such as 2%, or a size such as 100MiB. Returns JSON; sizes are bytes.
    """
    return _answer("compare", "--json", f"--fail-over={fail_over}", "--", base, head)


def hfmem_fit(model: str, batch: int = 8, length: int = 512, precision: str = "fp32") -> str:
    """Forecast what a training step of a model needs, and whether it fits on this machine's devices.

    `model` is a folder or file with a configuration, or a model in the local cache. Returns JSON; sizes are
    bytes.
    """
    sizes = f"--batch={batch}", f"--length={length}", f"--precision={precision}"
    return _answer("fit", "--json", *sizes, "--", model)


def _answer(*words: str) -> str:
    command = [sys.executable, "-m", "hfmem_widget", *words]
    try:
        done = subprocess.run(  # noqa: S603  (no shell, and what is given comes after --)
            command, capture_output=True, encoding="utf-8", timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return f"hfmem {words[0]} took more than {PATIENCE:.0f} s, and was stopped"
    return done.stdout or done.stderr
