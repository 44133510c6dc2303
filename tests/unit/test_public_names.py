"""What is public: `tests/data/typed.py` has what a type checker knows of it."""

from __future__ import annotations

import hfmem_widget


def test_the_tab_key_offers_what_one_calls() -> None:
    """Functions, a Trainer's callback, and no class of which the package itself makes the objects."""
    offered = {name for name in dir(hfmem_widget) if not name.startswith("_")}

    assert offered < set(hfmem_widget.__all__)
    assert {"watch", "fit", "compare", "holders", "open", "MemoryCallback"} <= offered
    assert not offered & {"Peak", "Span", "Timeline", "OptionError"}
    assert "__version__" in dir(hfmem_widget)


def test_of_a_session_the_tab_key_offers_what_one_reads() -> None:
    """Not what fills it."""
    offered = {name for name in dir(hfmem_widget.Session()) if not name.startswith("_")}

    assert not offered & {"adopt", "append", "on_step", "replace_lock", "subscribers", "open_span"}
    assert {"anatomy", "figure", "findings", "peak", "spans", "steps", "to_pandas"} <= offered
