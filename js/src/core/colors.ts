/** Okabe and Ito's colours, which everyone can tell apart; all others are the page's own. */

import { SERIES } from "./series.ts";

/** The opacity of a part's colour on the page's own. */
export const SHARE = 0.84;
export const ALLOCATED = SERIES.allocated.color;
export const OTHER = SERIES.device_used.color;
export const PEAK = "#D55E00";
/** White text would have a contrast of 3.9:1 on it. */
export const ON_PEAK = "#000000";
export const EVALUATION = "#CC79A7";
/** Okabe and Ito's yellow, darkened: it would be invisible on white. */
export const SAVE = "#B3A125";

/** Bars show structure, not data: greys by depth, and a hue for work between steps. */
const DEPTHS = ["#5F6875", "#7D8794", "#9AA3AD", "#B4BBC3"];
const KINDS: Record<string, string> = { evaluate: EVALUATION, predict: EVALUATION, save: SAVE, oom: PEAK };

export function spanColor(kind: string, depth: number): string {
  return KINDS[kind] ?? DEPTHS[Math.min(depth, DEPTHS.length - 1)]!;
}

/** The colour of `color` with an opacity from 0 to 1 on an opaque surface. */
export function laidOn(surface: string, color: string, share: number): string {
  const under = channels(surface);
  const mixed = channels(color).map((value, index) =>
    Math.round(share * value + (1 - share) * under[index]!),
  );
  return `rgb(${mixed.join(",")})`;
}

/** Reads `#rgb`, `#rrggbb`, `rgb(…)` and `rgba(…)`; any other text counts as white. */
function channels(color: string): number[] {
  const [, hex] = /^#([\da-f]{3}|[\da-f]{6})$/i.exec(color) ?? [];
  const size = (hex?.length ?? 0) / 3;
  if (hex)
    return [0, 1, 2].map((at) => Number.parseInt(hex.slice(at * size, (at + 1) * size).repeat(3 - size), 16));
  const [, ...numbers] = /^rgba?\((\d+), *(\d+), *(\d+)/.exec(color) ?? [];
  return numbers.length === 3 ? numbers.map(Number) : [255, 255, 255];
}

/** The colour of text on `color`: black or white, whichever is easier to read. */
export function inkOn(color: string): string {
  return contrast("#ffffff", color) > contrast("#000000", color) ? "#ffffff" : "#000000";
}

/** The contrast ratio of two opaque colours by WCAG, from 1 to 21. */
export function contrast(first: string, second: string): number {
  const [dark, bright] = [luminance(first), luminance(second)].sort((a, b) => a - b);
  return (bright! + 0.05) / (dark! + 0.05);
}

function luminance(color: string): number {
  const [red, green, blue] = channels(color).map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red! + 0.7152 * green! + 0.0722 * blue!;
}
