"""What the still views draw, piece by piece: ``python -m tests.data.drawn`` writes `drawn.txt` anew.

A piece is an element and where it is, how large, how thick, in which colour; of texts only that they are
there, and their figures, so that a sentence may be worded anew. Whoever changes a picture sees in the
difference of the file which of its pieces moved.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from tests.data.drawn_cards import CARDS
from tests.data.drawn_scenes import FIGURES, PAGES, Bundle

FILE = Path(__file__).with_name("drawn.txt")

SHAPE = (
    *("x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "dx", "dy", "width", "height", "viewbox"),
    *("d", "transform", "text-anchor", "fill", "fill-opacity", "stroke", "stroke-width"),
    *("stroke-dasharray", "stroke-opacity", "font-weight", "rx"),
)
STYLE = re.compile(r"(?:^|;)((?:font-weight|border-top|opacity|min-height|text-align|color):[^;]*)")
FIGURE = re.compile(
    r"[+\u2212\u00b1<]?\d[\d,.:]*(?:[ \u00a0]?(?:[PTGMk]i?B|ms|s|min|h|%|B|M|k)\b)?"
)
ENDS = 120
"""Characters."""

TOLD = {"text", "name", "hovertext", "ticktext", "ticksuffix"}
"""Keys of Plotly's that are for people to read."""


def shortened(text: str) -> str:
    """Return what is long with its ends alone: of a line of hundreds of points those tell enough."""
    return (
        text if len(text) <= 3 * ENDS else f"{text[:ENDS]} \u2026{len(text)}\u2026 {text[-ENDS:]}"
    )


def figures(text: str) -> str:
    return " ".join(FIGURE.findall(text)) or "\u2026" * bool(text.strip())


class _Pieces(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        told = [f"{name}={shortened(given[name])}" for name in SHAPE if name in given]
        told += STYLE.findall(re.sub(r"var\([^()]*(\([^()]*\))?\)", "var", given.get("style", "")))
        if told:
            self.found.append(f"{tag} {' '.join(told)}")

    def handle_data(self, data: str) -> None:
        if told := figures(data):
            self.found.append(f"{self.found.pop() if self.found else ''} | {told}")


def pieces_of_page(*bundles: Bundle) -> list[str]:
    found = []
    for bundle in bundles:
        parser = _Pieces()
        parser.feed(bundle["text/html"])
        found += parser.found
        found += [f"> {figures(line)}" for line in bundle.get("text/plain", "").splitlines()]
    return found


def _plain(value: Any, key: str = "") -> Any:
    """Return a part of a figure as JSON can have it, numbers as long as they are seen."""
    if isinstance(value, dict) and "bdata" in value:
        numbers = np.frombuffer(base64.b64decode(value["bdata"]), "<f4").tolist()
        return shortened(" ".join(f"{one:.4g}" for one in numbers))
    if isinstance(value, dict):
        return {name: _plain(one, name) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one, key) for one in value]
    if isinstance(value, float):
        return None if value != value else float(f"{value:.4g}")  # noqa: PLR0124  (NaN)
    return figures(value) if isinstance(value, str) and key in TOLD else value


def pieces_of_figure(figure: dict[str, Any]) -> list[str]:
    found = [json.dumps(_plain(one), ensure_ascii=False) for one in figure["data"]]
    for name, value in _plain(figure["layout"]).items():
        each = value if isinstance(value, list) else [value]
        found += [f"{name}: {json.dumps(one, ensure_ascii=False)}" for one in each]
    return found


def _page(make: Callable[[], list[Bundle]]) -> list[str]:
    return pieces_of_page(*make())


def _figure(make: Callable[[], dict[str, Any]]) -> list[str]:
    return pieces_of_figure(make())


def every() -> Iterator[tuple[str, Callable[[], list[str]]]]:
    """Yield the name of each picture, and what its pieces are made by."""
    for name, page in {**PAGES, **CARDS}.items():
        yield f"page: {name}", partial(_page, page)
    for name, figure in FIGURES.items():
        yield f"figure: {name}", partial(_figure, figure)


def kept() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            pieces = found.setdefault(line[3:], [])
        elif line:
            pieces.append(line)
    return found


if __name__ == "__main__":
    text = "\n\n".join("\n".join((f"== {name}", *make())) for name, make in every())
    FILE.write_text(text + "\n", encoding="utf-8")
