import pytest

from hfmem_widget.sources.heap import scan, search


@pytest.fixture(autouse=True)
def no_modules_but_these(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the other tests' modules out, which hold tensors of their own."""
    monkeypatch.setattr(search, "user_modules", dict)
    monkeypatch.setattr(scan, "shared_memory", lambda: 0)
