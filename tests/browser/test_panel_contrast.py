"""What stands in the panel and over a live chart can be read on either ground (WCAG 2 AA)."""

from __future__ import annotations

from typing import Literal

import pytest

from tests.browser.lab import Lab
from tests.browser.test_panel import LOAD, OVER_BUDGET, run_over_budget, wait_for_panel

LEAST = 4.5
# Each text that is seen, with the contrast of its colour to what lies below it.
CONTRASTS = """() => {
  const context = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgba = color => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = color;
    context.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], ground) => [r, g, b].map((one, i) => a * one + (1 - a) * ground[i]);
  const luminance = color => {
    const [r, g, b] = color.map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const around = node => {
    const all = [];
    for (let at = node; at; at = at.parentElement) all.unshift(at);
    return all;
  };
  const contrast = node => {
    let ground = [255, 255, 255], opacity = 1;
    for (const at of around(node)) {
      const style = getComputedStyle(at);
      opacity *= Number(style.opacity);
      ground = over(rgba(style.backgroundColor), ground);
    }
    const [r, g, b, a] = rgba(getComputedStyle(node).color);
    const [one, two] = [ground, over([r, g, b, a * opacity], ground)].map(color => luminance(color) + 0.05);
    return Math.max(one / two, two / one);
  };
  const found = {};
  for (const root of document.querySelectorAll('#hfmem-panel, .jp-OutputArea .hfmem-root, #hfmem-status')) {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode.parentElement, text = walker.currentNode.data.trim();
      if (text === '' || node.closest('svg, style, .hfmem-hidden') || !node.checkVisibility()) continue;
      found[`${node.className || node.parentElement.className}: ${text.slice(0, 40)}`] = contrast(node);
    }
  }
  return found;
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_can_be_read(lab: Lab, theme: Literal["light", "dark"]) -> None:
    """With a warning, a note, a cell that failed, the worst peak, and a series that is switched off."""
    panel = run_over_budget(lab, theme, ending="raise ValueError")
    for root in (panel.element, lab.cell(2)):
        root.get_by_title("hide resident").click()
    lab.page.wait_for_timeout(600)
    contrasts = lab.page.evaluate(CONTRASTS)
    lab.screenshot(f"panel-contrast-{theme}")
    lab.interrupt()
    lab.wait_until_idle()

    assert len(contrasts) > 20
    assert {text: round(one, 2) for text, one in contrasts.items() if one < LEAST} == {}


def test_no_two_landmarks_have_the_same_name(lab: Lab) -> None:
    """Whoever goes from landmark to landmark finds the panel once."""
    lab.page.set_viewport_size({"width": 1600, "height": 900})
    lab.open(LOAD, OVER_BUDGET)
    lab.run_cell(0)
    lab.run_cell(1, wait=False)
    panel = wait_for_panel(lab)
    lab.cell(1).locator("[data-hfmem-draws]").wait_for()

    assert lab.page.get_by_role("region", name="memory").count() == 1
    assert panel.element.get_by_role("group", name="memory").count() == 1
    lab.interrupt()
    lab.wait_until_idle()
