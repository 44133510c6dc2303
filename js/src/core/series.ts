/** The series that can be drawn, from Python's own table; `session/series.py` explains its columns. */

import SERIES from "../../../hfmem_widget/session/series.json";

type Table = typeof SERIES;

export { SERIES };

/** The names of the rows that have a value in a column. */
type With<Trait extends string> = {
  [Name in keyof Table]: Table[Name] extends Record<Trait, unknown> ? Name : never;
}[keyof Table];
export type LineName = With<"drawn">;
export type PartName = With<"stacked">;

function having<Trait extends string>(trait: Trait): readonly With<Trait>[] {
  const names = Object.keys(SERIES) as (keyof Table)[];
  return names.filter((name): name is With<Trait> => trait in SERIES[name]);
}

export const LINES = having("drawn");
/** The parts of allocated memory, from the bottom of a stack to its top. */
export const STACK = having("stacked");
/** The purposes of tensors. */
export const HELD = having("held");

/** The key of the device that stands for all ranks of a run; a rank drawn by itself is `rank:N`. */
export const OVERVIEW = "ranks";
/** The metrics of that device that each show one rank, which a small world has. */
export const SINGLY = LINES.filter((name) => name.startsWith("rank"));
const HOST = "cpu";
/** Series of the host that are much larger than what the process uses, and are drawn only on request. */
const ASIDE: readonly string[] = having("aside_on_host");
const BAND: readonly LineName[] = ["lowest", "median", "allocated"];

/** The row with the look of a line; `allocated` of the overview is the highest rank's. */
export function lookOf(device: string, metric: LineName): LineName {
  return device === OVERVIEW && metric === "allocated" ? "highest" : metric;
}

export function isAside(device: string, metric: string): boolean {
  return device === HOST && ASIDE.includes(metric);
}

/** The bytes from which on it is drawn. */
export function leastOf(look: LineName): number {
  const row: { label: string; least?: number } = SERIES[look];
  return row.least ?? 0;
}

/** Plotly's name of the dash. */
export function dashOf(look: LineName): string {
  const row: { label: string; dash?: string } = SERIES[look];
  return row.dash ?? "solid";
}

/**
 * The metrics of the overview to draw, in order: the single ranks, or else a band. Solid lines are drawn first, since
 * they would hide dashed ones; of the dashed ones, the worst rank is on top.
 */
export function overRanks(known: readonly string[], worst: number | null = null): LineName[] {
  const place = (name: LineName) => (dashOf(name) === "solid" ? 0 : name === `rank${worst}` ? 2 : 1);
  const singly = SINGLY.filter((name) => known.includes(name)).sort((a, b) => place(a) - place(b));
  return singly.length > 0 ? singly : BAND.filter((name) => known.includes(name));
}
