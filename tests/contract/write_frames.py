"""Writes what Python sends into ``frames/``, for the page: ``python -m tests.contract.write_frames``."""

import json
from base64 import b64encode
from pathlib import Path
from typing import Any, Final

from tests.contract.runs import RUNS, Recording

FRAMES: Final = Path(__file__).parent / "frames"


def render(recording: Recording) -> str:
    """Return a recording as JSON, one message a line, so that a change can be read in a diff."""
    messages = [
        {"content": message, "buffers": [_base64(buffer) for buffer in buffers]}
        for message, buffers in recording.sent
    ]
    # What ipywidgets sends: bytes travel as buffers beside the state, and are put back in their places.
    binary = {key: value for key, value in recording.history.items() if isinstance(value, bytes)}
    history = {
        "after": recording.history_after,
        "state": {key: value for key, value in recording.history.items() if key not in binary},
        "buffers": {key: _base64(value) for key, value in binary.items()},
    }
    lines = ",\n".join(map(_line, messages))
    return f'{{"messages": [\n{lines}\n],\n"history": {_line(history)}}}\n'


def _base64(buffer: bytes) -> str:
    return b64encode(buffer).decode("ascii")


def _line(value: Any) -> str:
    # Strict JSON: a browser parses no NaN.
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


if __name__ == "__main__":
    FRAMES.mkdir(exist_ok=True)
    for old in FRAMES.glob("*.json"):
        old.unlink()
    for name, run in RUNS.items():
        (FRAMES / f"{name}.json").write_text(render(run()), encoding="utf-8", newline="\n")
