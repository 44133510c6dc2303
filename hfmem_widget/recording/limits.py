"""The name of the format, and the limits of its reader."""

FORMAT = "hfmem"
VERSION = 1

SUFFIX = ".hfmem.jsonl"
ENDINGS = (".jsonl", ".jsonl.gz")
"""The endings that the name of a recording may have."""

LONGEST_LINE = 1 << 20
"""The most bytes of a line."""

DEEPEST = 8
"""The most nested brackets in a line."""

MOST_IN_BLOCK = 1000
"""The most samples in a line."""

MOST_FIGURES = 40_000
"""The most readings in a line: each has up to 19 digits, and a line up to `LONGEST_LINE` bytes."""

MOST_STEPS_IN_LINE = 100
MOST_SERIES = 4096
MOST_RANKS = 1 << 20
MOST_SPANS = 100_000
MOST_STEPS = 200_000
MOST_OF_A_LIST = 1000
"""The most entries of a list: notes, findings, guides, moves."""

MOST_SITES = 400
"""The most places of memory that was live at a peak: as many as fit in a line."""

LONGEST_TEXT = 256
LARGEST = 2.0**60

MEMBER = 1 << 18
"""Bytes of text in a compressed member."""

LARGEST_MEMBER = 16 << 20
MOST_RATIO = 200
"""The most bytes of text for a compressed byte; more is taken for a decompression bomb."""
