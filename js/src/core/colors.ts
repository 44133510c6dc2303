/** Okabe and Ito's colours, told apart by everyone; the rest is the page's own. */

export const ALLOCATED = "#0072B2";
export const CACHE = "#56B4E9";
export const OTHER = "#9AA3AD";
export const PEAK = "#D55E00";
export const EVALUATION = "#CC79A7";
/** Their yellow, darkened: on white it would be lost. */
export const SAVE = "#B3A125";

/** Bars read as structure, not as data: greys by depth, and a hue for what is done between steps. */
const DEPTHS = ["#5F6875", "#7D8794", "#9AA3AD", "#B4BBC3"];
const KINDS: Record<string, string> = { evaluate: EVALUATION, predict: EVALUATION, save: SAVE, oom: PEAK };

export function spanColor(kind: string, depth: number): string {
  return KINDS[kind] ?? DEPTHS[Math.min(depth, DEPTHS.length - 1)]!;
}

/** What a label on a bar of `color` is written in. */
export function inkOn(color: string): string {
  const [red, green, blue] = [1, 3, 5].map((at) => Number.parseInt(color.slice(at, at + 2), 16));
  return 0.299 * red! + 0.587 * green! + 0.114 * blue! > 140 ? "#14181D" : "#FFFFFF";
}
