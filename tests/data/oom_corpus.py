"""Texts of out-of-memory errors as the versions named wrote them, and what they say. Figures are made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple


class Said(NamedTuple):
    """One text, where it is from, and what is in it; bytes, None where it does not say."""

    version: str
    origin: str
    says: dict[str, Any]
    text: str


_FILE = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

CORPUS = tuple(Said(**one) for one in _FILE["errors"])

NUMPY = tuple((one["text"], one["asked"]) for one in _FILE["numpy"])
"""What numpy says, from 1.17 on, and the bytes."""

NOT_ABOUT_MEMORY = tuple(_FILE["not_about_memory"])
