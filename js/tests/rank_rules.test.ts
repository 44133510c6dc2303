/** What is said and drawn of all ranks, shared with Python (`tests/contract/test_rank_rules.py`). */

import { describe, expect, test } from "vitest";
import table from "../../tests/contract/rank_rules.json";
import type { Certainty } from "../src/core/protocol.ts";
import { inPairs, type RankRow, type Ranks } from "../src/core/ranks.ts";
import {
  aboutRows,
  BAND,
  cellColor,
  fullOf,
  heightOf,
  peakNames,
  phaseCells,
  rankCells,
  reportingText,
  sideWords,
} from "../src/core/rankwords.ts";
import { type LineName, lookOf, overRanks } from "../src/core/series.ts";

interface Case {
  name: string;
  world: number;
  nodes?: number;
  table?: Partial<RankRow>[];
  phases?: [string, number, number, number, number][];
  /** So many rows, each of as many neighbours; or the first rank of each. */
  first?: number | number[];
}

interface Rules {
  drawn: [string[], number | null, string[]][];
  looks: [string, LineName, string][];
  band: string;
  peaks: (Case & { bytes: number; certainty: Certainty; called: string })[];
  tables: (Case & { heads: string[]; rows: string[][] })[];
  phase_tables: (Case & { heads: string[]; rows: string[][] })[];
  reporting: [number, number, string][];
  colours: [number, number, string][];
  scales: [number[], number][];
  heights: [number, number][];
  sides: (Case & { words: [number, string, boolean][]; about: string })[];
  folds: { name: string; first: number[]; at: number[]; cells: number[]; most: number; folded: number[][] }[];
}

const rules = table as unknown as Rules;

const UNKNOWN = { total: Number.NaN, peak: Number.NaN, weights: Number.NaN, activations: Number.NaN };
const NOTHING = { attempt: 0, host: "", device: "", step: 0, phase: "", silent: 0, flag: "" };
const ROW: RankRow = { rank: 0, certainty: "exact", ...UNKNOWN, ...NOTHING };

function ranksOf({ world, nodes = 1, table: rows = [], phases = [], first = [] }: Case): Ranks {
  const size = typeof first === "number" ? world / first : 0;
  const firsts = typeof first === "number" ? Array.from({ length: first }, (_, at) => at * size) : first;
  return {
    ...{ world, nodes, reporting: world, engine: "", isWhole: true },
    ...{ lowest: Number.NaN, median: Number.NaN, lowestRank: 0 },
    table: rows.map((row) => ({ ...ROW, ...row })),
    phases: phases.map(([kind, low, median, high, rank]) => ({ kind, low, median, high, rank })),
    strip: { first: firsts, at: [], cells: new Uint8Array(0) },
  };
}

describe("all ranks are drawn as in Python", () => {
  test.each(rules.drawn)("of %j, the worst of which is %s, %j", (metrics, worst, drawn) => {
    expect(overRanks(metrics, worst)).toEqual(drawn);
  });

  test.each(rules.looks)("%s/%s looks like %s", (device, metric, look) => {
    expect(lookOf(device, metric)).toBe(look);
  });

  test("and the band is called so", () => {
    expect(BAND).toBe(rules.band);
  });

  test.each(rules.reporting)("%i of %i is %j", (reporting, world, said) => {
    expect(reportingText({ reporting, world })).toBe(said);
  });

  test.each(rules.colours)("a cell of %i of %i is %s", (cell, full, ink) => {
    const hex = cellColor(cell, full).map((channel) => channel.toString(16).padStart(2, "0"));
    expect(hex.join("")).toBe(ink);
  });

  test.each(rules.scales)("the scale of %j ends at %i", (cells, full) => {
    expect(fullOf(Uint8Array.from(cells))).toBe(full);
  });

  test.each(rules.heights)("%i rows are %i pixels high", (rows, height) => {
    expect(heightOf(rows)).toBe(height);
  });

  test.each(rules.sides)("$name", (told) => {
    const ranks = ranksOf(told);
    const words = sideWords(ranks).map(({ row, text, isWorst }) => [row, text, isWorst]);
    expect(words).toEqual(told.words);
    expect(aboutRows(ranks)).toBe(told.about);
  });

  test.each(rules.folds.filter(({ at, most }) => at.length > most))(
    "$name",
    ({ first, at, cells, folded }) => {
      const found = inPairs({ first, at, cells: Uint8Array.from(cells) });
      expect([found.at, [...found.cells]]).toEqual(folded);
    },
  );
});

describe("all ranks have the same texts as in Python", () => {
  test.each(rules.peaks)("the peak is $name", (told) => {
    expect(peakNames(ranksOf(told), told)[0]).toBe(told.called);
  });

  test.each(rules.tables)("$name", ({ heads, rows, ...told }) => {
    expect(rankCells(ranksOf(told))).toEqual({ heads, rows });
  });

  test.each(rules.phase_tables)("phases of $name", ({ heads, rows, ...told }) => {
    expect(phaseCells(ranksOf(told))).toEqual({ heads, rows });
  });
});
