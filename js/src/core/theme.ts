/** The page's own colours, read from computed styles, because Plotly does not know CSS variables. */

export interface Theme {
  text: string;
  muted: string;
  line: string;
  /** The page's background. */
  surface: string;
  font: string;
}

/**
 * Reads the colours that chart.css gives to `probe`.
 *
 * They are read from properties, not from the variables: a variable may have any expression (`color-mix(…)`), but
 * Plotly can parse any computed `color`.
 */
export function readTheme(probe: Element): Theme {
  const style = getComputedStyle(probe);
  return {
    text: asRgb(style.color, "#24292f"),
    muted: asRgb(style.borderTopColor, "#6b7280"),
    line: asRgb(style.borderBottomColor, "#e0e3e7"),
    surface: asRgb(style.borderLeftColor, "#ffffff"),
    font: style.fontFamily || "sans-serif",
  };
}

/**
 * Whether the host's text is light, so that its page is dark. The system may be dark when the page is not: marimo and
 * the classic notebook are light on their own.
 */
export function isOnDark(host: Element): boolean {
  const { color } = getComputedStyle(host);
  const [first = 0, green = 0, blue = 0] = (color.match(/[\d.]+/g) ?? []).map(Number);
  if (color.startsWith("rgb")) return 0.299 * first + 0.587 * green + 0.114 * blue > 127;
  if (color.startsWith("color(")) return 0.299 * first + 0.587 * green + 0.114 * blue > 0.5;
  // oklch, oklab, lch and lab begin with the lightness, up to 1 or to 100.
  return (first > 1 ? first / 100 : first) > 0.5;
}

/** Calls `onChange` when the page or the system switches between light and dark. */
export function watchTheme(onChange: () => void, signal: AbortSignal): void {
  const observer = new MutationObserver(onChange);
  const attributeFilter = ["data-jp-theme-light", "data-jp-theme-name", "class", "data-theme", "theme"];
  for (const node of [document.body, document.documentElement])
    observer.observe(node, { attributes: true, attributeFilter });
  signal.addEventListener("abort", () => observer.disconnect());
  globalThis.matchMedia?.("(prefers-color-scheme: dark)").addEventListener("change", onChange, { signal });
}

/** A computed `color-mix` is `color(srgb r g b / a)`, which Plotly cannot read. */
function asRgb(color: string, fallback: string): string {
  const match = /^color\(srgb ([\d.]+) ([\d.]+) ([\d.]+)(?: \/ ([\d.]+))?\)$/.exec(color);
  if (!match) return color || fallback;
  const [red, green, blue] = match.slice(1, 4).map((part) => Math.round(255 * Number(part)));
  return `rgba(${red},${green},${blue},${match[4] ?? 1})`;
}
