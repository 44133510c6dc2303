/** What can be drawn of a device: Python's own table. What a row has, `session/series.py` says. */

import SERIES from "../../../hfmem_widget/session/series.json";

type Table = typeof SERIES;

export { SERIES };

/** The names of the rows that have something. */
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
/** What allocated memory is made of, from the bottom of a stack up. */
export const STACK = having("stacked");
/** What tensors were found to be. */
export const HELD = having("held");

/** The device that stands for all ranks of a run; those that are drawn by themselves are `rank:N`. */
export const OVERVIEW = "ranks";
/** The metrics of that device that are a rank each, in a world of so few. */
export const SINGLY = LINES.filter((name) => name.startsWith("rank"));
const HOST = "cpu";
/** What on the host would squeeze what the process uses: drawn there only for who asks for it. */
const ASIDE: readonly string[] = having("aside_on_host");
const BAND: readonly LineName[] = ["lowest", "median", "allocated"];

/** The row that says how a line is drawn: what was allocated by all ranks is that of the highest. */
export function lookOf(device: string, metric: LineName): LineName {
  return device === OVERVIEW && metric === "allocated" ? "highest" : metric;
}

export function isAside(device: string, metric: string): boolean {
  return device === HOST && ASIDE.includes(metric);
}

/** From so many bytes on it is drawn. */
export function leastOf(look: LineName): number {
  const row: { label: string; least?: number } = SERIES[look];
  return row.least ?? 0;
}

/** By Plotly's name. */
export function dashOf(look: LineName): string {
  const row: { label: string; dash?: string } = SERIES[look];
  return row.dash ?? "solid";
}

/**
 * Which metrics of all ranks are drawn, in order: each rank by itself, or else a band. Lines with gaps lie on those
 * without, which else would hide them; of these the worst rank's is on top.
 */
export function overRanks(known: readonly string[], worst: number | null = null): LineName[] {
  const place = (name: LineName) => (dashOf(name) === "solid" ? 0 : name === `rank${worst}` ? 2 : 1);
  const singly = SINGLY.filter((name) => known.includes(name)).sort((a, b) => place(a) - place(b));
  return singly.length > 0 ? singly : BAND.filter((name) => known.includes(name));
}
