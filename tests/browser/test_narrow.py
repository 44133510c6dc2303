"""Where there is little room: between both side bars of a small window, on a phone, at 200 % zoom."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, CDPSession, Locator, Page

from tests.browser.lab import THEMES, Lab, take
from tests.browser.shown import LOAD, SCRIPTED, SHOW
from tests.scenes import scripted_run

CARDS = """%load_ext hfmem_widget
from IPython.display import display
from tests.scenes import scripted_run
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
    lab.resize(width, 900)
    lab.open(CARDS)
    lab.run_cell(0)
    lab.page.evaluate(f"() => jupyterapp.shell.{'expand' if between else 'collapse'}Left()")
    if between:
        lab.page.locator(".jp-SideBar.jp-mod-right [data-id='hfmem-panel']").click()
        lab.page.locator("#hfmem-panel").wait_for()
    lab.wait_for("() => document.querySelector('.jp-RenderedHTML')?.clientWidth < 260")
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


def new_page(request: pytest.FixtureRequest, scale: int) -> Page:
    """Return a page of the browser whose screen has that scale."""
    context: BrowserContext = request.getfixturevalue("dense_browser" if scale > 1 else "browser")
    return context.new_page()


@pytest.mark.parametrize("run", ["training", "eight gpus", "leak"])
@pytest.mark.parametrize("window", [(320, 1), (640, 2)], ids=["on a phone", "at 200 %"])
def test_a_report_fits(
    request: pytest.FixtureRequest, tmp_path: Path, shots: Path, run: str, window: tuple[int, int]
) -> None:
    """Its live chart too: no control lies on another, every device's tab is in sight."""
    width, zoom = window
    page = new_page(request, zoom)
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(scripted_run(run).report(tmp_path / "run.html").as_uri())
    page.locator("#hfmem-chart .main-svg").first.wait_for()
    page.locator(".hfmem-tab").last.wait_for()
    take(page, shots / f"report-{run.replace(' ', '-')}-{width}.png", full_page=True)
    found = page.evaluate(MISPLACED)
    scrolls = page.locator(".hfmem-tabs").evaluate("it => it.scrollWidth - it.clientWidth")
    page.close()

    assert found == []
    assert scrolls <= 1


# Each text as it is seen: which is cut off, and which lies on another.
CUT_OR_COVERED = """root => {
    const seen = [], found = [], walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    const frame = root.getBoundingClientRect();
    const touch = (one, two) => one.right > two.left + 1 && two.right > one.left + 1
        && one.bottom > two.top + 1 && two.bottom > one.top + 1;
    // The notebook scrolls up and down, and so does the panel.
    const clips = it => {
        let clip = { left: 0, right: innerWidth, top: -Infinity, bottom: Infinity };
        for (let at = it; at; at = at.parentElement) {
            if (at instanceof SVGElement || getComputedStyle(at).overflowX === 'visible') continue;
            const { left, right, top, bottom } = at.getBoundingClientRect();
            clip = { ...clip, left: Math.max(clip.left, left), right: Math.min(clip.right, right) };
            if (root.contains(at) && at !== root)
                clip = { ...clip, top: Math.max(clip.top, top), bottom: Math.min(clip.bottom, bottom) };
        }
        return clip;
    };
    const shortens = it => it.closest('.hfmem-notice') || getComputedStyle(it).textOverflow === 'ellipsis';
    while (walker.nextNode()) {
        const text = walker.currentNode.data.trim(), it = walker.currentNode.parentElement;
        if (text === '' || it.closest('style, .hfmem-hidden, .hfmem-tip, .hoverlayer')) continue;
        if (!it.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
        const range = document.createRange();
        range.selectNodeContents(walker.currentNode);
        const clip = clips(it);
        for (const { left, right, top, bottom } of range.getClientRects()) {
            const one = { text, left, right, top: top + 2, bottom: bottom - 2 };
            if (!touch(one, clip)) continue;
            const isCut = left < clip.left - 1 || right > clip.right + 1
                || top < clip.top - 3 || bottom > clip.bottom + 3;
            if (isCut && ![it, it.parentElement].some(shortens)) found.push(`cut: ${text}`);
            seen.push({ ...one, left: Math.max(left, clip.left), right: Math.min(right, clip.right) });
        }
    }
    for (const one of seen) for (const two of seen) {
        if (one === two || one.text === two.text) continue;
        if (touch(one, two)) found.push(`${one.text} on ${two.text}`);
    }
    if (frame.left < 0 || frame.right > innerWidth + 1) found.push('it is wider than the window');
    for (const it of root.querySelectorAll('.hfmem-legend'))
        if (it.scrollHeight > it.clientHeight + 1) found.push('the legend has names that are out of sight');
    for (const it of [root, ...root.querySelectorAll('*')]) {
        const scrolls = ['auto', 'scroll'].includes(getComputedStyle(it).overflowX);
        if (scrolls && it.scrollWidth > it.clientWidth + 1) found.push(`${it.className} scrolls sideways`);
    }
    return found;
}"""
WIDTHS = ((1920, 1), (1280, 1), (900, 1), (320, 1), (640, 2), (450, 2))
"""Widths of the window in CSS pixels, and how many of the screen's are one of these."""
NARROWEST = ((900, 1), (320, 1), (450, 2))
"""Those of them that leave eight devices the least room: beside a panel, on a phone, at 200 %."""
IN_BOTH = 320
"""The width that is seen in both themes: what is drawn has the same places in each."""


@pytest.fixture
def devtools(lab: Lab) -> Iterator[CDPSession]:
    """Return what tells the page about its screen; it has its own again afterwards."""
    session = lab.page.context.new_cdp_session(lab.page)
    yield session
    session.detach()


def resize(lab: Lab, devtools: CDPSession, width: int, scale: int) -> None:
    """Make the page as wide as a window of a screen with that scale."""
    lab.page.set_viewport_size({"width": width, "height": 900 // scale})
    screen = {"width": width, "height": 900 // scale, "deviceScaleFactor": scale, "mobile": False}
    devtools.send("Emulation.setDeviceMetricsOverride", screen)
    lab.wait_for(
        "([width, scale]) => innerWidth === width && devicePixelRatio === scale", arg=[width, scale]
    )


def cut_or_covered(drawn: Locator) -> list[str]:
    """Return the texts that are not whole once the chart has been drawn anew for its width."""
    found: list[str] = []
    for _ in range(40):
        found = drawn.evaluate(CUT_OR_COVERED)
        if not found:
            break
        drawn.page.wait_for_timeout(250)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "widths"),
    [
        ("leak", WIDTHS),
        ("eight gpus", NARROWEST),
        pytest.param("eight gpus", WIDTHS, marks=pytest.mark.full),
    ],
    ids=["leak", "eight gpus where it is narrowest", "eight gpus"],
)
def test_a_live_chart_and_the_panel_fit(
    lab: Lab, devtools: CDPSession, name: str, widths: tuple[tuple[int, int], ...]
) -> None:
    """Every text is whole and by itself, with a warning and with eight devices; each width has its chart."""
    resize(lab, devtools, *WIDTHS[0])
    lab.open(LOAD, SCRIPTED.format(name) + SHOW)
    lab.page.evaluate("() => jupyterapp.shell.collapseLeft()")
    lab.run_cell(0)
    chart, panel = lab.cell(1).locator(".hfmem-root"), lab.page.locator("#hfmem-panel")
    found = {}
    for width, scale in widths:
        lab.page.evaluate("() => jupyterapp.shell.collapseRight()")
        lab.command("notebook:clear-all-cell-outputs")
        chart.wait_for(state="detached")
        resize(lab, devtools, width, scale)
        lab.run_cell(1)
        chart.locator(".main-svg").first.wait_for()
        for theme in THEMES if width == IN_BOTH else THEMES[:1]:
            lab.theme(theme)
            lab.page.evaluate("() => jupyterapp.shell.collapseRight()")
            lab.wait_until_still(".jp-OutputArea .hfmem-root")
            lab.screenshot(f"fits-{name.replace(' ', '-')}-{width}-{theme}-cell")
            found[f"{width} {theme} cell"] = cut_or_covered(chart)
            lab.command("hfmem-widget:show")
            panel.locator(".main-svg").first.wait_for()
            lab.wait_until_still("#hfmem-panel")
            lab.screenshot(f"fits-{name.replace(' ', '-')}-{width}-{theme}-panel")
            found[f"{width} {theme} panel"] = cut_or_covered(panel)

    assert {place: all_ for place, all_ in found.items() if all_} == {}
