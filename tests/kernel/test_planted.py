"""Whoever reads the text of a cell alone, such as a coding agent, finds what holds its memory."""

from __future__ import annotations

import pytest

from hfmem_widget.view.card import MOST_TEXT
from tests.data.planted import FAULTS, PREPARE, Fault
from tests.kernel.drive import Kernel
from tests.kernel.test_left_behind import ONE_PERCENT, card

WITH_TORCH = True


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_the_text_of_a_cell_names_what_holds_memory(fresh: Kernel, fault: Fault) -> None:
    """The name and the way, in at most 1,500 characters."""
    assert fresh.run(PREPARE + ONE_PERCENT).status == "ok"
    text = card(fresh, fault.cell.strip(), status=fault.status)["text/plain"]

    assert all(word in text for word in fault.words), text
    assert len(text) <= MOST_TEXT
