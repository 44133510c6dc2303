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
