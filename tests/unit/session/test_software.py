"""Which versions a session names."""

from __future__ import annotations

import pickle
import platform
import sys
from types import SimpleNamespace

import pytest

import hfmem_widget
from hfmem_widget.session import Session
from hfmem_widget.session.software import loaded_software


def test_a_live_session_names_what_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's version and ours are always there; of the others, those that run."""
    monkeypatch.setitem(sys.modules, "peft", SimpleNamespace(__version__="0.0.99\x1b[31m"))
    monkeypatch.setitem(sys.modules, "trl", None)  # as an import that failed
    session = Session()

    assert session.software["python"] == platform.python_version()
    assert session.software["hfmem_widget"] == hfmem_widget.__version__
    assert session.software["peft"] == "0.0.99[31m"
    assert "trl" not in session.software


def test_a_copy_keeps_the_versions_and_equality_leaves_them_out() -> None:
    """What was recorded is the same, wherever that was."""
    session = Session("run", software={"torch": "0.0.99"})

    assert pickle.loads(pickle.dumps(session)).software == {"torch": "0.0.99"}
    assert session == Session("run", software=loaded_software())
