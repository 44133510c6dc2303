"""Reads the SVG of the still views: the place of every stroke, area, box and word, in pixels."""

import re
from dataclasses import dataclass
from typing import NamedTuple
from xml.etree import ElementTree as ET

Point = tuple[float, float]


class Word(NamedTuple):
    """A text, its place, and which of its ends is there."""

    text: str
    x: float
    y: float
    anchor: str


@dataclass(frozen=True, slots=True)
class Path:
    """A path with its subpaths, their corners in pixels, and its look."""

    runs: tuple[tuple[Point, ...], ...]
    fill: str
    stroke: str
    width: float
    dash: str
    opacity: float
    closed: bool
    title: str = ""

    @property
    def style(self) -> tuple[str, float, str, float]:
        return self.stroke, self.width, self.dash, self.opacity


class Drawing:
    """The contents of an `svg` element that is `width` pixels wide."""

    def __init__(self, html: str, width: float = 1000.0) -> None:
        self.width = width
        self.tree = ET.fromstring(f"<body>{html}</body>")
        self.svg = next(self.tree.iter("svg"))
        self.height = float(self.svg.get("height", "nan"))
        self.label = self.svg.get("aria-label", "")

    def words(self) -> list[Word]:
        return [
            Word(
                "".join(one.itertext()),
                self._x(one.get("x", "0")) + _moved(one),
                float(one.get("y", "0")),
                one.get("text-anchor", "start"),
            )
            for one in self.svg.iter("text")
        ]

    def frames(self) -> list[list[Path]]:
        """Return the paths of each frame that fills the width, in pixels of the whole drawing."""
        return [
            list(self._paths(one, float(one.get("y", "0"))))
            for one in self.svg.findall("svg")
            if one.get("viewBox") is not None
        ]

    def dots(self) -> list[Point]:
        """Return the middles of all circles."""
        return [
            (self._x(one.get("cx", "")), float(one.get("cy", "")))
            for one in self.svg.iter("circle")
        ]

    def _x(self, text: str) -> float:
        return float(text[:-1]) / 100 * self.width if text.endswith("%") else float(text)

    def _paths(self, frame: ET.Element, top: float) -> list[Path]:
        box = frame.get("viewBox")
        left_of, top_of, wide, high = map(float, box.split()) if box else (0, 0, self.width, 1)
        tall = float(frame.get("height", "nan")) / high if box else 1.0
        titles = {
            id(path): group.findtext("title") or "" for group in frame.iter("g") for path in group
        }
        return [
            Path(
                tuple(
                    tuple(
                        ((x - left_of) * self.width / wide, top + (y - top_of) * tall)
                        for x, y in run
                    )
                    for run in corners(one.get("d", ""))
                ),
                one.get("fill", "black"),
                one.get("stroke", "none"),
                float(one.get("stroke-width", "0")),
                one.get("stroke-dasharray", ""),
                float(one.get("stroke-opacity") or one.get("fill-opacity") or 1),
                one.get("d", "").endswith("z"),
                titles.get(id(one), ""),
            )
            for one in frame.iter("path")
        ]


def corners(path: str) -> list[list[Point]]:
    runs: list[list[Point]] = []
    x = y = 0.0
    for command, numbers in re.findall(r"([MLlhvHVz])([^MLlhvHVz]*)", path):
        given = [float(one) for one in re.findall(r"-?[\d.]+", numbers)]
        if command == "z":
            continue
        if command in "hHvV":
            (moved,) = given
            x, y = {"h": (x + moved, y), "H": (moved, y), "v": (x, y + moved), "V": (x, moved)}[
                command
            ]
        else:
            (dx, dy) = given
            x, y = (x + dx, y + dy) if command == "l" else (dx, dy)
        if command == "M":
            runs.append([])
        runs[-1].append((x, y))
    return runs


def _moved(one: ET.Element) -> float:
    found = re.search(r"translate\((-?[\d.]+)\)", one.get("transform", ""))
    return float(found[1]) if found else 0.0
