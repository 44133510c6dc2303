import { describe, expect, test } from "vitest";
import { Column } from "../src/core/extremes.ts";
import { gapsWithin } from "../src/core/gaps.ts";
import { Timeline } from "../src/core/timeline.ts";
import { random } from "./frames.ts";

function rows(times: number[], values: number[]) {
  return { time: Float64Array.from(times), values: Float32Array.from(values), columns: 1 };
}

function range(count: number): number[] {
  return Array.from({ length: count }, (_, index) => index);
}

describe("Column", () => {
  test("extremes of any stretch are those of its values", () => {
    const next = random(1);
    const values = range(9000).map(() => (next() < 0.05 ? Number.NaN : Math.fround(next())));
    const column = new Column();
    column.reserve(values.length);
    for (const [index, value] of values.entries()) column.put(index, value);
    for (let trial = 0; trial < 200; trial++) {
      const from = Math.floor(next() * values.length);
      const to = from + Math.floor(next() * (values.length - from));
      const known = values.slice(from, to).filter((value) => !Number.isNaN(value));
      const high = known.length > 0 ? Math.max(...known) : Number.NaN;
      column.scan(from, to);
      expect(column.low).toBe(known.length > 0 ? Math.min(...known) : Number.NaN);
      expect(column.high).toBe(high);
      expect(column.highest(from, to)).toBe(known.length > 0 ? values.indexOf(high, from) : -1);
    }
  });

  test("a stretch of nothing has no extremes", () => {
    const column = new Column();
    column.reserve(128);
    column.scan(0, 128);
    expect([column.low, column.high]).toEqual([Number.NaN, Number.NaN]);
  });
});

describe("Timeline", () => {
  test("rows not later than the newest one held are dropped", () => {
    const timeline = new Timeline();
    timeline.append(rows([1, 2], [10, 20]));
    timeline.append(rows([1.5, 2, 3], [99, 99, 30]));
    expect([...timeline.time.slice(0, timeline.length)]).toEqual([1, 2, 3]);
    expect(timeline.columns[0]!.values[2]).toBe(30);
  });

  test("two rows of the same time in one message both stay", () => {
    const timeline = new Timeline();
    timeline.append(rows([1, 1, 2, 2], [1, 5, 2, 6]));
    expect(timeline.length).toBe(4);
  });

  test("a series that is added later is not available before", () => {
    const timeline = new Timeline();
    timeline.append(rows([1], [10]));
    timeline.append({ time: Float64Array.of(2), values: Float32Array.of(20, 5), columns: 2 });
    expect([...timeline.columns[1]!.values.slice(0, 2)]).toEqual([Number.NaN, 5]);
  });

  test("a full timeline folds, keeps its bound, its order and both extremes of every stretch", () => {
    const next = random(2);
    const timeline = new Timeline(256);
    const values = range(5000).map(() => Math.fround(next()));
    values[1234] = 77;
    values[3210] = -77;
    for (const index of range(5000)) timeline.append(rows([index], [values[index]!]));
    expect(timeline.length).toBeLessThanOrEqual(256);
    const times = timeline.time.slice(0, timeline.length);
    expect(times).toEqual(times.toSorted());
    timeline.columns[0]!.scan(0, timeline.length);
    expect([timeline.columns[0]!.low, timeline.columns[0]!.high]).toEqual([-77, 77]);
  });

  test("a fold keeps a gap a gap", () => {
    const timeline = new Timeline(64);
    for (const index of range(70)) timeline.append(rows([index], [index === 20 ? Number.NaN : 1]));
    expect(timeline.length).toBeLessThan(64);
    expect(timeline.gaps.map((row) => timeline.time[row])).toEqual([20]);
  });

  test("folding goes on where nothing but gaps came", () => {
    const timeline = new Timeline(64);
    for (const index of range(1000)) timeline.append(rows([index], [Number.NaN]));
    expect(timeline.length).toBeLessThanOrEqual(64);
  });
});

describe("gapsWithin", () => {
  test("a gap lasts from the last reading to the next", () => {
    const timeline = new Timeline();
    timeline.append(rows([0, 1, 1.1, 5, 5.1], [1, 1, Number.NaN, 1, 1]));
    expect(gapsWithin(timeline, [0, 6], 0.3)).toEqual([{ start: 1, stop: 5 }]);
    expect(gapsWithin(timeline, [0, 6], 10)).toEqual([]);
    expect(gapsWithin(timeline, [5.05, 6], 0.3)).toEqual([]);
  });

  test("marks in a row are one gap", () => {
    const timeline = new Timeline();
    timeline.append(rows([0, 1, 2, 3, 4], [1, Number.NaN, Number.NaN, Number.NaN, 1]));
    expect(gapsWithin(timeline, [0, 4], 0.3)).toEqual([{ start: 0, stop: 4 }]);
  });
});
