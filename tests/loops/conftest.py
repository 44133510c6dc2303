import pytest

from hfmem_widget.drivers.training import models
from hfmem_widget.monitor import grouping


@pytest.fixture(autouse=True)
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each pass and each step followed by itself, however busy the machine is."""
    monkeypatch.setattr(grouping, "ALLOWANCE", 1e9)
    monkeypatch.setattr(models, "SHARE", 1e9)
