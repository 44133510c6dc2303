"""What holds for all forecasts here: no largest batch is looked for, unless a test says what is free."""

from __future__ import annotations

from math import nan

import pytest

from hfmem_widget.features.fit import api
from hfmem_widget.features.fit.model import Room


@pytest.fixture(autouse=True)
def unknown_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a device that does not tell what is free: to look for the largest batch takes six dry runs."""
    monkeypatch.setattr(api, "rooms", lambda: ((Room("cpu", "CPU", nan, nan),), ""))
