"""Cards where there is little room: between both side bars of a small window, and on a phone."""

from __future__ import annotations

import pytest

from tests.browser.lab import Lab

# Side bars stay as wide as they were.
pytestmark = pytest.mark.new_page

CARDS = """%load_ext hfmem_widget
from IPython.display import display
from hfmem_widget.testing import scripted_run
from hfmem_widget.view.card import card_bundle
for name in ["training", "eight gpus", "leak"]:
    session = scripted_run(name)
    display(card_bundle(session, session.spans[0], with_chart=True), raw=True)
"""
CUT_OFF = """() => [...document.querySelectorAll('.jp-RenderedHTML')].map(card => {
    const scrolls = it => ['auto', 'hidden'].includes(getComputedStyle(it).overflowX);
    const isWide = it => it.scrollWidth > it.clientWidth + 1;
    const wide = [card, ...card.querySelectorAll('*')].filter(isWide);
    return wide.filter(it => it === card || (it.clientWidth > 0 && !scrolls(it))).map(it => it.textContent);
})"""


@pytest.mark.parametrize(
    ("width", "between"), [(900, True), (320, False)], ids=["between side bars", "on a phone"]
)
def test_nothing_of_a_card_is_cut_off(lab: Lab, width: int, between: bool) -> None:
    """Words break and figures stand below each other; a table scrolls within its own frame."""
    lab.page.set_viewport_size({"width": width, "height": 900})
    lab.open(CARDS)
    lab.run_cell(0)
    lab.page.evaluate(f"() => jupyterapp.shell.{'expand' if between else 'collapse'}Left()")
    if between:
        lab.page.locator(".jp-SideBar.jp-mod-right [data-id='hfmem-panel']").click()
        lab.page.locator("#hfmem-panel").wait_for()
    lab.page.wait_for_function(
        "() => document.querySelector('.jp-RenderedHTML')?.clientWidth < 260"
    )
    lab.screenshot(f"narrow-{width}", lab.cell(0))

    assert lab.page.evaluate(CUT_OFF) == [[], [], []]
