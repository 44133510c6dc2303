"""Data that several tests share: runs, cases, recordings of real cards."""

from pathlib import Path
from typing import Final

DATA: Final = Path(__file__).parent
ROOT: Final = DATA.parents[1]
