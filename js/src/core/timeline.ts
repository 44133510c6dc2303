/**
 * Columns of samples: time in seconds, values in bytes. They are bounded, and folded into lows and highs when full.
 */

import { Column } from "./extremes.ts";
import type { Rows } from "./protocol.ts";

const MAX_ROWS = 1_200_000;
/** 48 MB of values: 72 series of eight GPUs have 4 hours at ten rows a second before the first fold. */
const MAX_CELLS = 12_000_000;

export class Timeline {
  time = new Float64Array(1024);
  columns: Column[] = [];
  /** The rows of NaN, in order, at which nothing was sampled. */
  gaps: number[] = [];
  length = 0;

  constructor(private readonly limit = MAX_ROWS) {}

  get last(): number {
    return this.length === 0 ? Number.NEGATIVE_INFINITY : this.time[this.length - 1]!;
  }

  get maxRows(): number {
    return Math.min(this.limit, Math.floor(MAX_CELLS / Math.max(1, this.columns.length)));
  }

  /** Appends the rows that are later than the newest one. */
  append(rows: Rows): void {
    const newest = this.last;
    while (this.columns.length < rows.columns) {
      const column = new Column();
      column.reserve(this.time.length);
      this.columns.push(column);
    }
    for (let row = 0; row < rows.time.length; row++) {
      if (rows.time[row]! <= newest) continue;
      if (this.length >= this.maxRows) this.fold();
      this.push(rows.time[row]!, (column) =>
        column < rows.columns ? rows.values[row * rows.columns + column]! : Number.NaN,
      );
    }
  }

  /** Replaces all rows after the second `from`, except those later than the last of `rows`. */
  replace(rows: Rows, from: number): void {
    // A folded row also covers the time after it, so the last one before `from` may reach beyond it.
    const begin = rows.time.findLast((time) => time <= from);
    const earlier = this.part(0, begin === undefined ? this.firstAfter(from) : this.firstFrom(begin));
    const later = this.part(this.firstAfter(rows.time.at(-1) ?? Number.NEGATIVE_INFINITY), this.length);
    this.clear();
    for (const each of [earlier, rows, later]) this.append(each);
  }

  private part(from: number, to: number): Rows {
    const columns = this.columns.length;
    const values = new Float32Array((to - from) * columns);
    for (let row = from; row < to; row++) {
      for (let column = 0; column < columns; column++) {
        values[(row - from) * columns + column] = this.columns[column]!.values[row]!;
      }
    }
    return { time: this.time.slice(from, to), values, columns };
  }

  clear(): void {
    this.length = 0;
    this.gaps = [];
    for (const column of this.columns) column.clear();
  }

  /** The first row that is not before `time`, from row `from` on. */
  firstFrom(time: number, from = 0): number {
    return this.search((candidate) => candidate < time, from);
  }

  firstAfter(time: number): number {
    return this.search((candidate) => candidate <= time, 0);
  }

  private search(isBefore: (time: number) => boolean, from: number): number {
    let low = from;
    let high = this.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (isBefore(this.time[middle]!)) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  private push(time: number, value: (column: number) => number): void {
    if (this.length === this.time.length) this.reserve(2 * this.length);
    const row = this.length++;
    this.time[row] = time;
    let empty = true;
    for (let index = 0; index < this.columns.length; index++) {
      const reading = value(index);
      this.columns[index]!.put(row, reading);
      if (!Number.isNaN(reading)) empty = false;
    }
    if (empty) this.gaps.push(row);
  }

  private reserve(rows: number): void {
    const time = new Float64Array(rows);
    time.set(this.time);
    this.time = time;
    for (const column of this.columns) column.reserve(rows);
  }

  /** Halves the rows: four neighbours become two, their low and their high; gaps stay. */
  private fold(): void {
    const folded = new Timeline(Number.POSITIVE_INFINITY);
    folded.columns = this.columns.map(() => new Column());
    folded.reserve(this.time.length);
    const keepsGaps = this.gaps.length < this.length / 8;
    let from = 0;
    for (const gap of keepsGaps ? [...this.gaps, this.length] : [this.length]) {
      for (let row = from; row < gap; row += 4) this.foldInto(folded, row, Math.min(row + 4, gap));
      if (gap < this.length) folded.push(this.time[gap]!, () => Number.NaN);
      from = gap + 1;
    }
    Object.assign(this, {
      time: folded.time,
      columns: folded.columns,
      gaps: folded.gaps,
      length: folded.length,
    });
  }

  private foldInto(folded: Timeline, from: number, to: number): void {
    for (const column of this.columns) column.scan(from, to);
    folded.push(this.time[from]!, (column) => this.columns[column]!.low);
    if (to - from > 1) folded.push(this.time[to - 1]!, (column) => this.columns[column]!.high);
  }
}
