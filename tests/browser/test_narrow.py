"""Where there is little room: between both side bars of a small window, on a phone, at 200 % zoom."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext

from hfmem_widget.testing import scripted_run
from tests.browser.lab import Lab

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


@pytest.mark.new_page  # side bars stay as wide as they were
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


MISPLACED = """() => {
    const isShown = it => it.checkVisibility({ visibilityProperty: true }) && it.getClientRects().length > 0;
    const frame = it => it.closest('.hfmem-tabs')?.getBoundingClientRect() ?? { left: 0, right: innerWidth };
    const found = [];
    if (document.documentElement.scrollWidth > innerWidth) found.push('the page scrolls sideways');
    const controls = [...document.querySelectorAll('button, input, summary, a')].filter(isShown).map(it => {
        const { left, right, top, bottom } = it.getBoundingClientRect();
        const { left: from, right: to } = frame(it);
        return { it, left: Math.max(left, from), right: Math.min(right, to), top, bottom };
    }).filter(({ left, right }) => right > left);
    for (const one of controls) for (const two of controls) {
        if (one === two || one.it.contains(two.it) || two.it.contains(one.it)) continue;
        const beside = one.right <= two.left + 1 || two.right <= one.left + 1;
        const below = one.bottom <= two.top + 1 || two.bottom <= one.top + 1;
        if (!beside && !below) found.push(`${one.it.textContent} on ${two.it.textContent}`);
    }
    for (const { it, left, right } of controls) {
        if (left < 0 || right > innerWidth + 1) found.push(`${it.textContent} is cut off`);
    }
    return found;
}"""


@pytest.mark.parametrize("run", ["training", "eight gpus", "leak"])
@pytest.mark.parametrize("window", [(320, 1), (640, 2)], ids=["on a phone", "at 200 %"])
def test_a_report_fits(
    browser: BrowserContext, tmp_path: Path, shots: Path, run: str, window: tuple[int, int]
) -> None:
    """Its live chart too: no control lies on another, every device's tab is in sight."""
    width, zoom = window
    whole = browser.browser
    assert whole is not None
    context = whole.new_context(viewport={"width": width, "height": 900}, device_scale_factor=zoom)
    page = context.new_page()
    page.goto(scripted_run(run).report(tmp_path / "run.html").as_uri())
    page.locator("#hfmem-chart .main-svg").first.wait_for()
    page.locator(".hfmem-tab").last.wait_for()
    page.screenshot(path=shots / f"report-{run.replace(' ', '-')}-{width}.png", full_page=True)
    found = page.evaluate(MISPLACED)
    scrolls = page.locator(".hfmem-tabs").evaluate("it => it.scrollWidth - it.clientWidth")
    context.close()

    assert found == []
    assert scrolls <= 1
