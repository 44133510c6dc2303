/** The texts about all ranks, by the rules of `view/ranks.py`. */

import { digits, formatCount, formatDuration, type Unit, unitFor } from "./format.ts";
import { type Peak, peakText } from "./peak.ts";
import { FULL_CELL, MOST_ROWS, type RankRow, type Ranks, SILENT_CELL, type Strip } from "./ranks.ts";

/** The label of the area between two lines. */
export const BAND = "lowest to highest rank";

/** The share by which a peak may differ from that of its rank, which was sent a moment earlier or later. */
const SAME = 0.01;
/** The number of ranks up to which none is between the lowest and the highest. */
const FEW = 2;
const SHOWN_SINGLY = 8;

const FLAGS: Record<string, string> = { oom: "out of memory" };

/** The worst rank, if the peak is its own. */
export function worstOf(ranks: Ranks | null, bytes: number): RankRow | null {
  const worst = ranks !== null && ranks.world > 1 ? ranks.table[0] : undefined;
  return worst !== undefined && Math.abs(worst.peak - bytes) <= SAME * bytes ? worst : null;
}

/** The labels of the peak in a chart, from long to short; they name the worst rank if the peak is its own. */
export function peakNames(
  ranks: Ranks | null,
  { bytes, certainty }: Omit<Peak, "time">,
  unit?: Unit,
): string[] {
  const worst = worstOf(ranks, bytes);
  if (worst === null) return [`peak ${peakText(bytes, certainty, unit)}`];
  const named = `worst: rank ${worst.rank}, ${peakText(worst.peak, worst.certainty, unit)}`;
  return [...(worst.phase === "" ? [] : [`${named}, ${worst.phase}`]), named, `rank ${worst.rank}`];
}

/** The number of reporting ranks; empty if all report. */
export function reportingText({ reporting, world }: Pick<Ranks, "reporting" | "world">): string {
  return reporting >= world ? "" : `${formatCount(reporting)} of ${formatCount(world)} reporting`;
}

export interface Cells {
  heads: string[];
  rows: string[][];
}

/** A figure below the smallest that is shown. */
const NOTHING = "0.00";

/** The table, without empty columns. */
export function rankCells({ table, nodes }: Ranks): Cells {
  const rows = table.slice(0, MOST_ROWS);
  const unit = unitFor(highestOf(rows.map(({ peak }) => peak)));
  const bytes = (value: number, bound = "") =>
    Number.isFinite(value) ? bound + digits(value / unit.divisor) : "";
  const count = (value: number) => (value > 0 ? formatCount(value) : "");
  const columns: [string, string[]][] = [
    ["rank", rows.map(({ rank }) => String(rank))],
    ["node", rows.map(({ host }) => (nodes > 1 ? host : ""))],
    ["device", differing(rows.map(({ device }) => device))],
    [
      `peak, ${unit.name}`,
      rows.map(({ peak, certainty }) => bytes(peak, certainty === "at least" ? "≥ " : "")),
    ],
    ["weights", rows.map(({ weights }) => bytes(weights))],
    ["activations", rows.map(({ activations }) => bytes(activations))],
    ["step", rows.map(({ step }) => count(step))],
    ["restarts", rows.map(({ attempt }) => count(attempt))],
    ["", rows.map(flagText)],
  ];
  const shown = columns.filter(([, cells]) => cells.some((cell) => cell !== "" && cell !== NOTHING));
  return {
    heads: shown.map(([head]) => head),
    rows: rows.map((_, at) => shown.map(([, cells]) => cells[at]!)),
  };
}

/** The phases compared. */
export function phaseCells({ phases, world }: Ranks): Cells {
  const unit = unitFor(highestOf(phases.map(({ high }) => high)));
  const bytes = (value: number) => (Number.isFinite(value) ? digits(value / unit.divisor) : "n/a");
  const middle = (cell: string) => (world > FEW ? [cell] : []);
  return {
    heads: [`phase, ${unit.name}`, "lowest", ...middle("median"), "highest", "rank"],
    rows: phases.map(({ kind, low, median, high, rank }) => [
      ...[kind, bytes(low), ...middle(bytes(median)), bytes(high), String(rank)],
    ]),
  };
}

function highestOf(values: number[]): number {
  const known = values.filter(Number.isFinite);
  return known.length > 0 ? Math.max(...known) : Number.NaN;
}

function differing(texts: string[]): string[] {
  return new Set(texts).size > 1 ? texts : texts.map(() => "");
}

function flagText({ flag, silent }: RankRow): string {
  if (flag !== "silent" || !(silent > 0)) return FLAGS[flag] ?? flag;
  const whole = Math.round(silent);
  return `silent for ${whole < 60 ? `${whole} s` : formatDuration(whole)}`;
}

/** Viridis, which every eye can tell apart, also in grey print, on white and on black. */
const SCALE = [
  ...["440154", "482475", "414487", "355f8d", "2a788e", "21918c"],
  ...["22a884", "44bf70", "7ad151", "bddf26", "fde725"],
].map((hex) => [0, 2, 4].map((at) => Number.parseInt(hex.slice(at, at + 2), 16)));
const SILENT = [0xb8, 0xbe, 0xc5];

/** The cells at which a scale may end: few, so that colours seldom change during a run. */
const ENDS = [4, 10, 20, 50, 100, 150];

/** The cell at which the scale ends: a round share of the device that no cell exceeds, if there is one. */
export function fullOf(cells: Uint8Array): number {
  const highest = cells.reduce((most, cell) => (cell === SILENT_CELL ? most : Math.max(most, cell)), 0);
  return ENDS.find((end) => highest <= end) ?? FULL_CELL;
}

/** The colour of a cell on a scale that ends at `full`: red, green, blue. */
export function cellColor(cell: number, full = FULL_CELL): number[] {
  if (cell === SILENT_CELL) return SILENT;
  const place = Math.min(1, cell / full) * (SCALE.length - 1);
  const at = Math.min(Math.floor(place), SCALE.length - 2);
  return SCALE[at]!.map((low, channel) =>
    Math.floor(low + (place - at) * (SCALE[at + 1]![channel]! - low) + 0.5),
  );
}

const HIGH_ROW = 14;
const LOW_ROW = 2.25;
const LEAST_HEIGHT = 112;
/** The least distance between two labels at the side, in pixels. */
const BETWEEN = 12;

/** The height of a strip of `rows` rows, in pixels. */
export function heightOf(rows: number): number {
  return rows <= SHOWN_SINGLY ? HIGH_ROW * rows : Math.ceil(Math.max(LEAST_HEIGHT, LOW_ROW * rows));
}

function rowOf({ first }: Strip, rank: number): number {
  return Math.max(0, first.filter((each) => each <= rank).length - 1);
}

/** The rows with a label at the side, spaced apart: the worst, those with a flag, and both ends. */
export function sideWords(ranks: Ranks): { row: number; text: string; isWorst: boolean }[] {
  const { strip, table, world } = ranks;
  const rows = strip.first.length;
  if (rows === 0) return [];
  const named = world > 1 && table.length > 0 ? rowOf(strip, table[0]!.rank) : -1;
  const flagged = table.filter(({ flag }) => flag !== "").map(({ rank }) => rowOf(strip, rank));
  const all = rows <= SHOWN_SINGLY ? strip.first.map((_, row) => row) : [];
  const placed: number[] = [];
  for (const row of [...(named < 0 ? [] : [named]), ...flagged, 0, rows - 1, ...all]) {
    if (placed.every((other) => Math.abs(row - other) * heightOf(rows) >= BETWEEN * rows)) placed.push(row);
  }
  return placed.map((row) => ({ row, text: wordAt(ranks, row), isWorst: row === named }));
}

function wordAt({ strip: { first }, table, world }: Ranks, row: number): string {
  const until = first[row + 1] ?? world;
  const known = table.find(
    ({ rank, flag }, at) => (flag !== "" || at === 0) && rank >= first[row]! && rank < until,
  );
  const isLast = row === first.length - 1 && row > 0;
  return String(known?.rank ?? (isLast ? until - 1 : first[row]!));
}

/** The label of a row. */
export function aboutRows({ strip: { first }, world }: Ranks): string {
  const rows = first.length;
  if (rows === 0 || rows === world) return "a row for each rank";
  const size = world / rows;
  const each = Number.isInteger(size) ? formatCount(size) : `about ${size.toFixed(1)}`;
  return `${rows} rows, each the highest of ${each} neighbouring ranks`;
}
