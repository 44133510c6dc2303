"""What the still views draw, piece by piece: ``python -m tests.data.drawn`` writes `drawn.txt` anew.

A piece is an element and where it is, how large, how thick, in which colour; of texts only that they are
there, and their figures, so that a sentence may be worded anew. Of each picture the file has the number of
its pieces, and a digest of them. ``python -m tests.data.drawn NAME`` prints the pieces of those pictures
whose names begin so: printed before and after a change, they show which moved.
"""

import base64
import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import blake2s
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

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
TEXT_KEYS = {"text", "name", "hovertext", "ticktext", "ticksuffix"}
"""Keys of Plotly's that are for people to read."""


def figures(text: str) -> str:
    return " ".join(FIGURE.findall(text)) or "\u2026" * bool(text.strip())


class _Pieces(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        words = [f"{name}={given[name]}" for name in SHAPE if name in given]
        words += STYLE.findall(re.sub(r"var\([^()]*(\([^()]*\))?\)", "var", given.get("style", "")))
        if words:
            self.found.append(f"{tag} {' '.join(words)}")

    def handle_data(self, data: str) -> None:
        if numbers := figures(data):
            self.found.append(f"{self.found.pop() if self.found else ''} | {numbers}")


def pieces_of_page(*bundles: Bundle) -> list[str]:
    found = []
    for bundle in bundles:
        parser = _Pieces()
        parser.feed(bundle["text/html"])
        found += parser.found
        found += [f"> {figures(line)}" for line in bundle.get("text/plain", "").splitlines()]
    return found


def _plain(value: Any, key: str = "") -> Any:
    """Return a part of a figure as plain JSON, with numbers rounded to what can be seen."""
    if isinstance(value, dict) and "bdata" in value:
        numbers = np.frombuffer(base64.b64decode(value["bdata"]), "<f4").tolist()
        return " ".join(f"{one:.4g}" for one in numbers)
    if isinstance(value, dict):
        return {name: _plain(one, name) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one, key) for one in value]
    if isinstance(value, float):
        return None if value != value else float(f"{value:.4g}")  # noqa: PLR0124  (NaN)
    return figures(value) if isinstance(value, str) and key in TEXT_KEYS else value


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
    for name, page in PAGES.items():
        yield f"page: {name}", partial(_page, page)
    for name, figure in FIGURES.items():
        yield f"figure: {name}", partial(_figure, figure)


def summary(pieces: list[str]) -> str:
    digest = blake2s("\n".join(pieces).encode(), digest_size=8)
    return f"{len(pieces)} {digest.hexdigest()}"


def kept() -> dict[str, str]:
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return {name: text for text, name in (line.split("  ") for line in lines)}


if __name__ == "__main__":
    if begun := " ".join(sys.argv[1:]):
        shown = (piece for name, make in every() if name.startswith(begun) for piece in make())
        print("\n".join(shown))  # noqa: T201
    else:
        lines = (f"{summary(make())}  {name}\n" for name, make in every())
        FILE.write_text("".join(lines), encoding="utf-8")
