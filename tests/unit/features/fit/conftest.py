"""Rules for all forecasts here: the largest batch is not searched, unless a test sets the free memory."""

from math import nan

import pytest

from hfmem_widget.features.fit import api
from hfmem_widget.features.fit.model import Room


@pytest.fixture(autouse=True)
def unknown_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide a device whose free memory is unknown: a search for the largest batch takes six dry runs."""
    monkeypatch.setattr(api, "rooms", lambda: ((Room("cpu", "CPU", nan, nan),), ""))
