"""What malloc handed out and nobody has written, as a person reads it."""

from __future__ import annotations

import numpy as np
import pytest

import hfmem_widget
from hfmem_widget.analysis.host import untouched_text
from hfmem_widget.sources.malloc import find_glibc_heap
from hfmem_widget.view.one_line import compact_bundle

glibc = pytest.mark.skipif(find_glibc_heap() is None, reason="needs glibc's own malloc")


@glibc
def test_what_was_not_written_is_said_on_the_card() -> None:
    """An array of zeros takes no memory until it is filled, and the card says why nothing was left behind."""
    with hfmem_widget.watch("zeros", quiet=True) as session:
        array = np.zeros(200_000_000)
    with hfmem_widget.watch("ones", quiet=True) as filled:
        array[:25_000_000] = 1.0
    (span,), (after,) = session.spans, filled.spans

    assert "was allocated and not written yet" in untouched_text(session, span)
    assert untouched_text(session, span) in compact_bundle(session, span)["text/plain"]
    assert untouched_text(filled, after) == ""
