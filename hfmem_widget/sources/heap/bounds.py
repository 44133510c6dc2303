"""Where a search gives up: after so many objects, or so much time."""

from __future__ import annotations

import time

MOST_OBJECTS = 3_000_000
MOST_SECONDS = 10.0
_BETWEEN_LOOKS_AT_THE_CLOCK = 256


class SearchEnded(Exception):
    """A bound was reached: no error, but the end of all loops of a search, however deep."""


class Bounds:
    """Counts objects, and ends the search in the middle of whatever it goes through.

    Parameters
    ----------
    most_objects : int
    most_seconds : float
        From now on.

    Attributes
    ----------
    objects : int
        How many were counted.
    reached : str
        Which bound was reached, as a sentence; empty if none was.
    """

    def __init__(self, most_objects: int, most_seconds: float) -> None:
        self.objects = 0
        self.reached = ""
        self._most_objects = most_objects
        self._until = time.perf_counter() + most_seconds

    def count(self) -> None:
        """Count an object.

        Raises
        ------
        SearchEnded
            If that was one too many, or time is up.
        """
        self.objects += 1
        if self.objects >= self._most_objects:
            self._end(f"the search ended early, after {self.objects:,} objects")
        elif self.objects % _BETWEEN_LOOKS_AT_THE_CLOCK == 0 and time.perf_counter() > self._until:
            self._end(f"the search ran out of time after {self.objects:,} objects")

    def _end(self, reason: str) -> None:
        self.reached = reason
        raise SearchEnded(reason)
