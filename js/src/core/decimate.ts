/** The points of a stretch of the timeline for a chart: the low and the high of each bin, and the breaks. */

import type { Column } from "./extremes.ts";
import type { Timeline } from "./timeline.ts";

/** The most points of all drawn series together. SVG paths of this size redraw in a few tens of milliseconds. */
export const POINT_BUDGET = 12_000;

export interface Drawn {
  x: Float64Array;
  /** One array for each requested column, aligned with `x`; NaN breaks the line. */
  y: Float32Array[];
}

/**
 * Decimates the rows within [start, stop] seconds, and one neighbour at each side, so that lines reach the edges.
 *
 * Bins lie on a grid that does not depend on the window, so a growing or sliding chart keeps its shape, and every
 * series shares one `x`. If there are few rows, all of them are drawn.
 *
 * `leads` names, for each column, the one whose low and high decide on the rows: columns of one stack must show the
 * same instants. A column that leads itself has its own. `lines` is the number of all drawn columns.
 */
export function decimate(
  timeline: Timeline,
  columns: number[],
  [start, stop]: readonly [number, number],
  pixels: number,
  { leads = columns, lines = columns.length }: { leads?: number[]; lines?: number } = {},
): Drawn {
  const from = Math.max(0, timeline.firstFrom(start) - 1);
  const to = Math.min(timeline.length, timeline.firstAfter(stop) + 1);
  const breaks = firstAtLeast(timeline.gaps, to) - firstAtLeast(timeline.gaps, from);
  const wanted = Math.ceil(1.25 * pixels);
  const pointsInBin = breaks > wanted / 8 ? 8 : 2;
  const affordable = Math.floor(POINT_BUDGET / (pointsInBin * Math.max(1, lines)));
  const bins = Math.max(8, Math.min(wanted, affordable));
  if (to - from <= 2 * bins) return rowsAsTheyAre(timeline, columns, from, to);
  const width = steadyWidth((timeline.time[to - 1]! - timeline.time[from]!) / bins);
  return new Binning(timeline, columns, leads).run(from, to, width);
}

function rowsAsTheyAre(timeline: Timeline, columns: number[], from: number, to: number): Drawn {
  return {
    x: timeline.time.slice(from, to),
    y: columns.map((column) => timeline.columns[column]!.values.slice(from, to)),
  };
}

/** One of few widths, which change only if the window has grown by about a quarter. */
function steadyWidth(least: number): number {
  const power = 2 ** Math.floor(Math.log2(least));
  return power * Math.ceil((4 * least) / power - 1e-9) * 0.25;
}

class Binning {
  private readonly x: number[] = [];
  private readonly y: number[][];

  constructor(
    private readonly timeline: Timeline,
    private readonly columns: number[],
    private readonly leads: number[],
  ) {
    this.y = columns.map(() => []);
  }

  run(from: number, to: number, width: number): Drawn {
    const { time, gaps } = this.timeline;
    let gap = firstAtLeast(gaps, from);
    let row = from;
    while (row < to) {
      const edge = (Math.floor(time[row]! / width) + 1) * width;
      const end = Math.max(row + 1, Math.min(to, this.timeline.firstFrom(edge, row)));
      if (gap < gaps.length && gaps[gap]! < end) {
        this.stretch(row, gaps[gap]!);
        this.break(gaps[gap]!);
        // Breaks within one bin are drawn as one; the rows between them may still have a spike.
        const last = firstAtLeast(gaps, end) - 1;
        if (last > gap) {
          this.stretch(gaps[gap]! + 1, gaps[last]!);
          this.break(gaps[last]!);
        }
        this.stretch(gaps[last]! + 1, end);
        gap = last + 1;
      } else {
        this.stretch(row, end);
      }
      row = end;
    }
    return { x: Float64Array.from(this.x), y: this.y.map((values) => Float32Array.from(values)) };
  }

  private break(row: number): void {
    this.x.push(this.timeline.time[row]!);
    for (const values of this.y) values.push(Number.NaN);
  }

  private stretch(from: number, to: number): void {
    if (to <= from) return;
    const { time, columns } = this.timeline;
    this.x.push(time[from]!);
    if (to - from > 1) this.x.push(time[to - 1]!);
    const picked = new Map<number, [number, number]>();
    for (let index = 0; index < this.columns.length; index++) {
      const column = columns[this.columns[index]!]!;
      const lead = this.leads[index]!;
      const values = this.y[index]!;
      if (to - from === 1) values.push(column.values[from]!);
      else if (lead === this.columns[index]) values.push(...lowAndHigh(column, from, to));
      else {
        if (!picked.has(lead)) picked.set(lead, rowsOfBoth(columns[lead]!, from, to));
        for (const row of picked.get(lead)!) values.push(column.values[row] ?? Number.NaN);
      }
    }
  }
}

/** The low and the high in the order in which they most likely occurred. */
function lowAndHigh(column: Column, from: number, to: number): [number, number] {
  column.scan(from, to);
  const { low, high } = column;
  return fallsFrom(column.values[from]!, column) ? [high, low] : [low, high];
}

/** The rows of the values of `lowAndHigh`, in its order; -1 without a value. */
function rowsOfBoth(column: Column, from: number, to: number): [number, number] {
  const rows: [number, number] = [column.lowest(from, to), column.highest(from, to)];
  return fallsFrom(column.values[from]!, column) ? [rows[1], rows[0]] : rows;
}

function fallsFrom(first: number, { low, high }: Column): boolean {
  return first - low > high - first;
}

function firstAtLeast(sorted: number[], value: number): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle]! < value) low = middle + 1;
    else high = middle;
  }
  return low;
}
