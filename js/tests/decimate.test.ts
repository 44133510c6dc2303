import { describe, expect, test } from "vitest";
import { decimate, POINT_BUDGET } from "../src/core/decimate.ts";
import { Timeline } from "../src/core/timeline.ts";
import { random } from "./frames.ts";

function timelineOf(values: number[], columns = 1): Timeline {
  const timeline = new Timeline();
  const time = Float64Array.from(values, (_, index) => index * 0.1);
  const all = Float32Array.from(values.flatMap((value) => Array.from({ length: columns }, () => value)));
  timeline.append({ time, values: all, columns });
  return timeline;
}

function highest(values: Float32Array): number {
  return Math.max(...values.filter((value) => !Number.isNaN(value)));
}

describe("decimate", () => {
  test("a spike of one sample never disappears, wherever it is and whatever is looked at", () => {
    const next = random(3);
    const spike = 1000;
    for (let trial = 0; trial < 25; trial++) {
      const length = 2000 + Math.floor(next() * 30_000);
      const at = Math.floor(next() * length);
      const values = Array.from({ length }, () => next());
      values[at] = spike;
      const timeline = timelineOf(values);
      const start = Math.max(0, at * 0.1 - next() * length * 0.1);
      const { y } = decimate(timeline, [0], [start, at * 0.1 + next() * 100 + 0.01], 300);
      expect(highest(y[0]!)).toBe(spike);
    }
  });

  test("every pixel column shows the lowest and the highest of its rows", () => {
    const next = random(4);
    const values = Array.from({ length: 40_000 }, () => Math.fround(next()));
    const pixels = 400;
    const { x, y } = decimate(timelineOf(values), [0], [0, 4000], pixels);
    for (let column = 0; column < pixels; column++) {
      const inside = (time: number) => time >= column * 10 - 10 && time < column * 10 + 20;
      const shown = y[0]!.filter((_, index) => inside(x[index]!));
      const own = values.slice(column * 100, column * 100 + 100);
      expect(highest(shown)).toBeGreaterThanOrEqual(Math.max(...own));
      expect(Math.min(...shown)).toBeLessThanOrEqual(Math.min(...own));
    }
  });

  test("all series together stay within the budget, gaps included", () => {
    const next = random(5);
    const values = Array.from({ length: 40_000 }, () => (next() < 0.2 ? Number.NaN : next()));
    for (const count of [1, 3, 6, 48]) {
      const columns = Array.from({ length: count }, (_, index) => index);
      const { x } = decimate(timelineOf(values, count), columns, [0, 4000], 5000);
      expect(x.length * count).toBeLessThanOrEqual(1.05 * POINT_BUDGET);
    }
  });

  test("columns that go with another one are of the instants at which it was lowest and highest", () => {
    const next = random(8);
    const length = 40_000;
    const lead = Float32Array.from({ length }, () => next());
    const own = Float32Array.from(lead, (_, row) => row);
    const timeline = new Timeline();
    const values = Float32Array.from({ length: 2 * length }, (_, at) => (at % 2 ? own : lead)[at >> 1]!);
    timeline.append({ time: Float64Array.from(lead, (_, row) => row), values, columns: 2 });
    const { x, y } = decimate(timeline, [0, 1], [0, length], 300, { leads: [0, 0] });
    expect(x.length).toBeLessThan(1000);
    expect(highest(y[0]!)).toBe(Math.max(...lead));
    for (let index = 0; index < x.length; index++) expect(lead[y[1]![index]!]).toBe(y[0]![index]);
  });

  test("where there is nothing to go with, there is nothing", () => {
    const timeline = timelineOf(Array.from({ length: 9000 }, () => Number.NaN));
    const { y } = decimate(timeline, [0, 0], [0, 900], 100, { leads: [0, 0] });
    expect(y.map((values) => [...new Set(values)])).toEqual([[Number.NaN], [Number.NaN]]);
  });

  test("time never runs backwards", () => {
    const next = random(6);
    const values = Array.from({ length: 30_000 }, () => (next() < 0.001 ? Number.NaN : next()));
    const { x } = decimate(timelineOf(values), [0], [0, 3000], 500);
    expect(x).toEqual(x.toSorted());
  });

  test("a gap breaks the line, however many rows are around it", () => {
    for (const length of [50, 50_000]) {
      const values = Array.from({ length }, () => 1);
      values[Math.floor(length / 2)] = Number.NaN;
      const { x, y } = decimate(timelineOf(values), [0], [0, length * 0.1], 300);
      const breaks = [...y[0]!.keys()].filter((index) => Number.isNaN(y[0]![index]));
      expect(breaks.map((index) => x[index])).toEqual([Math.floor(length / 2) * 0.1]);
    }
  });

  test("few rows are drawn as they are, with one neighbour beyond each edge", () => {
    const { x, y } = decimate(timelineOf([0, 1, 2, 3, 4, 5]), [0], [0.15, 0.35], 300);
    expect([...y[0]!]).toEqual([1, 2, 3, 4]);
    expect(x.length).toBe(4);
  });

  test("old bins keep their points while new rows arrive", () => {
    const values = Array.from({ length: 20_000 }, (_, index) => Math.sin(index));
    const before = decimate(timelineOf(values), [0], [0, 2000], 300);
    const after = decimate(timelineOf([...values, 1, 2, 3]), [0], [0, 2000.3], 300);
    const settled = before.x.length - 4;
    expect(after.x.slice(0, settled)).toEqual(before.x.slice(0, settled));
  });

  test("nothing held is nothing drawn", () => {
    expect(decimate(new Timeline(), [], [0, 1], 300).x.length).toBe(0);
  });
});
