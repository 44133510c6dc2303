/** What can be drawn of a device, one row each. `session/series.py` reads the same table and says what a row has. */

import table from "../../../hfmem_widget/session/series.json";

type Table = typeof table;

/** The names of the rows that have something. */
type With<Trait extends string> = {
  [Name in keyof Table]: Table[Name] extends Record<Trait, unknown> ? Name : never;
}[keyof Table];

export interface Row {
  label: string;
  color: string;
  short?: string;
  drawn?: string;
  held?: number;
  stacked?: boolean;
}

export type LineName = With<"drawn">;
export type PartName = With<"stacked">;

export const SERIES: Record<keyof Table, Row> = table;

function named<Name extends keyof Table>(has: (row: Row) => boolean): readonly Name[] {
  const names = Object.keys(SERIES) as Name[];
  return names.filter((name) => has(SERIES[name]));
}

export const LINES = named<LineName>((row) => row.drawn !== undefined);
/** What allocated memory is made of, from the bottom of a stack up. */
export const STACK = named<PartName>((row) => row.stacked === true);
/** What tensors were found to be. */
export const HELD = named<PartName>((row) => row.held !== undefined);
