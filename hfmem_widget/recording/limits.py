"""What the format is called, and how much of anything a reader takes."""

from __future__ import annotations

FORMAT = "hfmem"
VERSION = 1

SUFFIX = ".hfmem.jsonl"
ENDINGS = (".jsonl", ".jsonl.gz")
"""What the name of a recording may end in."""

LONGEST_LINE = 1 << 20
"""Bytes of a line at most."""

DEEPEST = 8
"""Nested brackets at most."""

MOST_IN_BLOCK = 1000
"""Samples in a line."""

MOST_FIGURES = 40_000
"""Readings in a line: each has 19 digits at most, and a line `LONGEST_LINE` bytes."""

MOST_STEPS_IN_LINE = 100
MOST_SERIES = 4096
MOST_RANKS = 1 << 20
MOST_SPANS = 100_000
MOST_STEPS = 200_000
MOST_OF_A_LIST = 1000
"""Notes, findings, guides, moves."""

MOST_SITES = 400
"""Places of memory that was live at a peak: so many fit in a line."""

LONGEST_TEXT = 256
LARGEST = 2.0**60

MEMBER = 1 << 18
"""Bytes of text in a compressed member."""

LARGEST_MEMBER = 16 << 20
MOST_RATIO = 200
"""Bytes of text to a compressed byte: more is a bomb."""
