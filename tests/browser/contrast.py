"""Whether what is written on a page can be read: the contrast of what is painted (WCAG 2)."""

from playwright.sync_api import Page

LEAST = 4.5
"""What WCAG 2 AA asks of text."""

# Each text that is seen, with the contrast of its colour to what lies below it: backgrounds of elements, and
# in drawings the filled shapes painted before it. A sign that is hidden from screen readers is no text.
# Plotly draws the name of a series that is switched off at half its strength; WCAG exempts what is inactive.
SCRIPT = """roots => {
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
  const opacity = node => around(node).reduce((all, at) => all * Number(getComputedStyle(at).opacity), 1);
  const filled = node => {
    const {fill, fillOpacity} = getComputedStyle(node);
    const [r, g, b, a] = fill === 'none' || fill.startsWith('url') ? [0, 0, 0, 0] : rgba(fill);
    return [r, g, b, a * Number(fillOpacity) * opacity(node)];
  };
  const covers = (shape, x, y) => {
    const matrix = shape.getScreenCTM();
    return matrix && shape.isPointInFill(new DOMPoint(x, y).matrixTransform(matrix.inverse()));
  };
  const shapes = (node, range) => {
    const {left, right, top, bottom} = range.getBoundingClientRect();
    const drawing = around(node).find(it => it.matches('.js-plotly-plot, svg'));
    return [...drawing.querySelectorAll('rect, path, circle')]
      .filter(it => it.compareDocumentPosition(node) & Node.DOCUMENT_POSITION_FOLLOWING
        && it.checkVisibility() && !it.closest('defs, clipPath, .legend')
        && covers(it, (left + right) / 2, (top + bottom) / 2))
      .map(filled);
  };
  const contrast = (node, range) => {
    let ground = [255, 255, 255];
    for (const at of around(node)) ground = over(rgba(getComputedStyle(at).backgroundColor), ground);
    const isDrawn = node.closest('svg') !== null;
    if (isDrawn) for (const shape of shapes(node, range)) ground = over(shape, ground);
    const [r, g, b, a] = isDrawn ? filled(node) : rgba(getComputedStyle(node).color);
    const ink = [r, g, b, isDrawn ? a : a * opacity(node)];
    const [one, two] = [ground, over(ink, ground)].map(color => luminance(color) + 0.05);
    return Math.max(one / two, two / one);
  };
  const found = {};
  for (const root of document.querySelectorAll(roots)) {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode.parentElement, text = walker.currentNode.data.trim();
      if (text === '' || !node.checkVisibility()) continue;
      // Signs are pictures, for which 3 to 1 is enough (WCAG 1.4.11).
      if (node.closest('title, style, .hfmem-hidden, span[aria-hidden], span[role=img]')) continue;
      if (node.closest('.legend .traces')?.style.opacity < 1) continue;
      const range = document.createRange();
      range.selectNodeContents(walker.currentNode);
      if (range.getBoundingClientRect().width === 0) continue;
      const key = `${node.className.baseVal ?? node.className}: ${text.slice(0, 60)}`;
      found[key] = Math.min(found[key] ?? 21, contrast(node, range));
    }
  }
  return found;
}"""


def contrasts(page: Page, roots: str) -> dict[str, float]:
    """Return the contrast of each text within these elements, from 1 to 21."""
    found: dict[str, float] = page.evaluate(SCRIPT, roots)
    return found


def below(found: dict[str, float], least: float = LEAST) -> dict[str, float]:
    """Return what has less contrast than it needs."""
    return {text: round(one, 2) for text, one in found.items() if one < least}
