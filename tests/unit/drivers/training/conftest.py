"""A watched cell without hardware, for what opens spans in it."""

from __future__ import annotations

import pytest

from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Session
from tests.unit.monitor.conftest import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def session(bench: Bench) -> Session:
    """Return a session whose cell is open."""
    session = bench.monitor.begin(WatchOptions(quiet=True))
    bench.monitor.open_span(session, "cell", "cell")
    return session
