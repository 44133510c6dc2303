/** The state of all ranks of a run, decoded from the wire: bounded, and null if it is malformed. */

import { numberOr, someOf } from "./judged.ts";

export interface RankRow {
  rank: number;
  attempt: number;
  host: string;
  device: string;
  /** Bytes; NaN if unknown. */
  total: number;
  peak: number;
  certainty: (typeof CERTAINTIES)[number];
  weights: number;
  activations: number;
  step: number;
  phase: string;
  /** Seconds since its last data, if that is too long; 0 otherwise. */
  silent: number;
  flag: string;
}

/** Peaks of one phase, in bytes: the lowest, the median and the highest rank's. */
export interface PhaseSkew {
  kind: string;
  low: number;
  median: number;
  high: number;
  rank: number;
}

/** Ranks by time: a column for each of `at`, in seconds, with a cell for each of `first`, the first rank of a row. */
export interface Strip {
  first: number[];
  at: number[];
  cells: Uint8Array;
}

export interface Ranks {
  world: number;
  nodes: number;
  reporting: number;
  engine: string;
  lowest: number;
  median: number;
  lowestRank: number;
  /** The worst first. */
  table: RankRow[];
  phases: PhaseSkew[];
  strip: Strip;
  /** False if the strip has only its newest columns. */
  isWhole: boolean;
}

/** The values of a cell for a rank that sent no data, and for a full device. */
export const SILENT_CELL = 255;
export const FULL_CELL = 200;

export const MOST_ROWS = 16;
const MOST_PHASES = 8;
const MOST_DEVICES = 4;
const STRIP_ROWS = 64;
export const STRIP_COLUMNS = 240;
const MOST_LETTERS = 40;
const MOST_RANKS = 2 ** 24;
const CERTAINTIES = ["exact", "at least", "sampled"] as const;

export function decodeRanks(raw: unknown, cells: Uint8Array): Ranks | null {
  if (typeof raw !== "object" || raw === null) return null;
  const { devices, table, phases, strip, ...rest } = raw as Record<string, unknown>;
  const world = countOf(rest.world);
  const columns = decodeStrip(strip, cells, world);
  if (world < 1 || columns === null) return null;
  const known = someOf(devices, MOST_DEVICES, (entry) => ({
    name: textOf(entry[0]),
    total: numberOr(entry[1], Number.NaN),
  }));
  return {
    world,
    nodes: countOf(rest.nodes),
    reporting: countOf(rest.reporting),
    engine: textOf(rest.engine),
    lowest: numberOr(rest.lowest, Number.NaN),
    median: numberOr(rest.median, Number.NaN),
    lowestRank: countOf(rest.lowest_rank),
    table: someOf(table, MOST_ROWS, (entry) => decodeRow(listOf(entry), known)),
    phases: someOf(phases, MOST_PHASES, (entry) => decodePhase(listOf(entry))),
    ...columns,
  };
}

function decodeRow(entry: unknown[], devices: { name: string; total: number }[]): RankRow | null {
  const [rank, attempt, host, device, certainty, peak, weights, activations, step, phase, silent, flag] =
    entry;
  const on = devices[numberOr(device, -1)];
  if (entry.length !== 12 || countOf(rank, -1) < 0) return null;
  return {
    rank: countOf(rank),
    attempt: countOf(attempt),
    host: textOf(host),
    device: on?.name ?? "",
    total: on?.total ?? Number.NaN,
    peak: numberOr(peak, Number.NaN),
    certainty: CERTAINTIES[numberOr(certainty, -1)] ?? "sampled",
    weights: numberOr(weights, Number.NaN),
    activations: numberOr(activations, Number.NaN),
    step: Math.max(0, numberOr(step, 0)),
    phase: textOf(phase),
    silent: Math.max(0, numberOr(silent, 0)),
    flag: textOf(flag),
  };
}

function decodePhase([kind, ...raw]: unknown[]): PhaseSkew | null {
  const [low, median, high, rank] = raw.map((each) => numberOr(each, Number.NaN)) as [
    number,
    number,
    number,
    number,
  ];
  if (typeof kind !== "string" || raw.length !== 4 || Number.isNaN(high)) return null;
  return { kind: textOf(kind), low, median, high, rank: countOf(rank) };
}

/** A partial strip does not name the ranks of its rows, which are as before. */
function decodeStrip(raw: unknown, cells: Uint8Array, world: number) {
  const { at, first } = (raw ?? {}) as { at?: unknown; first?: unknown };
  if (!isRising(at, STRIP_COLUMNS, Number.POSITIVE_INFINITY)) return null;
  if (first === undefined) {
    const rows = at.length === 0 ? 0 : cells.length / at.length;
    if (!Number.isInteger(rows) || rows > STRIP_ROWS) return null;
    return { strip: { first: [], at, cells }, isWhole: false };
  }
  if (!isRising(first, STRIP_ROWS, world) || cells.length !== at.length * first.length) return null;
  return { strip: { first, at, cells }, isWhole: true };
}

function isRising(raw: unknown, most: number, below: number): raw is number[] {
  if (!Array.isArray(raw) || raw.length > most) return false;
  return raw.every((value, index) => {
    const least = index === 0 ? 0 : raw[index - 1];
    return typeof value === "number" && value >= least && value < below;
  });
}

/** The state after `newer` came: the newest columns of a partial strip replace the last ones. */
export function merged(held: Ranks | null, newer: Ranks, isOutline: boolean): Ranks {
  const old = held?.strip;
  const rows = old?.first.length ?? 0;
  if (newer.isWhole) {
    // A page that has a strip keeps its own, finer columns.
    const isFiner = isOutline && rows > 0 && old!.first.join() === newer.strip.first.join();
    return isFiner ? { ...newer, strip: appended(old!, newestOf(newer.strip, old!)) } : newer;
  }
  const { at, cells } = newer.strip;
  if (old === undefined || cells.length !== at.length * rows) {
    return { ...newer, strip: old ?? { first: [], at: [], cells: new Uint8Array(0) } };
  }
  return { ...newer, strip: appended(old, newer.strip) };
}

/** The columns that begin later than the last one in `held`. */
function newestOf({ first, at, cells }: Strip, { at: held }: Strip): Strip {
  const newest = held.at(-1) ?? Number.NEGATIVE_INFINITY;
  const begin = at.filter((time) => time <= newest).length;
  return { first, at: at.slice(begin), cells: cells.slice(begin * first.length) };
}

function appended({ first, at, cells }: Strip, newer: Strip): Strip {
  const begin = newer.at[0];
  if (begin === undefined) return { first, at, cells };
  const kept = at.filter((time) => time < begin).length;
  const rows = first.length;
  const both = new Uint8Array(kept * rows + newer.cells.length);
  both.set(cells.subarray(0, kept * rows));
  both.set(newer.cells, kept * rows);
  return bounded({ first, at: [...at.slice(0, kept), ...newer.at], cells: both });
}

function bounded(strip: Strip): Strip {
  return strip.at.length > STRIP_COLUMNS ? inPairs(strip) : strip;
}

/** Merges two columns: a cell is the highest of both, and silent only if both are. */
export function inPairs({ first, at, cells }: Strip): Strip {
  const rows = first.length;
  const folded = new Uint8Array(Math.ceil(at.length / 2) * rows);
  for (let index = 0; index < folded.length; index++) {
    const left = 2 * (index - (index % rows)) + (index % rows);
    folded[index] = highestCell(cells[left]!, cells[left + rows] ?? SILENT_CELL);
  }
  return { first, at: at.filter((_, index) => index % 2 === 0), cells: folded };
}

export function highestCell(one: number, two: number): number {
  if (one === SILENT_CELL) return two;
  return two === SILENT_CELL ? one : Math.max(one, two);
}

/** The form that `decodeRanks` reads, for a page that keeps it. */
export function encodeRanks(ranks: Ranks): object {
  const { lowestRank, table, phases, strip, isWhole: _, ...rest } = ranks;
  const devices = [...new Map(table.map((row) => [`${row.device}\n${row.total}`, row])).entries()];
  const figure = (value: number) => (Number.isNaN(value) ? null : value);
  return {
    ...rest,
    lowest: figure(rest.lowest),
    median: figure(rest.median),
    lowest_rank: lowestRank,
    devices: devices.map(([, { device, total }]) => [device, figure(total)]),
    table: table.map((row) => [
      ...[row.rank, row.attempt, row.host],
      devices.findIndex(([key]) => key === `${row.device}\n${row.total}`),
      CERTAINTIES.indexOf(row.certainty),
      ...[row.peak, row.weights, row.activations].map(figure),
      ...[row.step, row.phase, row.silent, row.flag],
    ]),
    phases: phases.map(({ kind, low, median, high, rank }) => [
      kind,
      ...[low, median, high].map(figure),
      rank,
    ]),
    strip: { first: strip.first, at: strip.at },
  };
}

function listOf(entry: unknown): unknown[] {
  return Array.isArray(entry) ? entry : [];
}

function textOf(value: unknown): string {
  return typeof value === "string" ? value.slice(0, MOST_LETTERS) : "";
}

function countOf(value: unknown, otherwise = 0): number {
  const count = numberOr(value, otherwise);
  return Number.isInteger(count) && count >= 0 && count < MOST_RANKS ? count : otherwise;
}
