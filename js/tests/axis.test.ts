import { describe, expect, test } from "vitest";
import {
  fittedRange,
  growingEnd,
  niceTop,
  tickCount,
  ticksWithin,
  timeTicks,
  valueTicks,
} from "../src/core/axis.ts";

describe("axes", () => {
  test("the top is round, never below the data and at most a quarter above", () => {
    for (let value = 0.013; value < 5e5; value *= 1.037) {
      expect(niceTop(value)).toBeGreaterThanOrEqual(value * (1 - 1e-9));
      expect(niceTop(value)).toBeLessThanOrEqual(1.25 * value);
    }
  });

  test("value ticks start at zero, stay within the axis and are few", () => {
    for (const top of [0.7, 1, 1.25, 9, 10, 140.4, 800]) {
      const { values, texts } = valueTicks(top, 5);
      expect(values[0]).toBe(0);
      expect(values.at(-1)).toBeLessThanOrEqual(top * (1 + 1e-9));
      expect(values.length).toBeLessThanOrEqual(6);
      expect(new Set(texts).size).toBe(values.length);
    }
  });

  test("an axis of any height, up to any top, has at most six labels, and from 160 pixels at least four", () => {
    for (let least = 0.013; least < 5e5; least *= 1.037) {
      for (const pixels of [60, 160, 400, 900]) {
        const { length } = valueTicks(niceTop(least), tickCount(pixels)).values;
        expect(length).toBeLessThanOrEqual(6);
        if (pixels >= 160) expect(length).toBeGreaterThanOrEqual(4);
      }
    }
  });

  test.each([
    [[65, 96], 4, ["1:10", "1:20", "1:30"]],
    [[3600, 6000], 5, ["1 h", "1 h 10", "1 h 20", "1 h 30", "1 h 40"]],
    [[100.01, 100.05], 4, ["1:40.01", "1:40.02", "1:40.03", "1:40.04", "1:40.05"]],
  ] as const)("time from %j reads %#", (range, count, texts) => {
    expect(timeTicks(range, count).texts).toEqual(texts);
  });

  test("a fitted range holds its data, and begins at zero unless they lie far above it", () => {
    for (const [low, high] of [
      [0, 7],
      [3, 7],
      [6.5, 7],
      [7, 7],
      [120.1, 123.4],
    ] as const) {
      const [from, to] = fittedRange(low, high);
      expect(from === 0).toBe(low <= 0.7 * high);
      expect(from).toBeLessThan(low || 1);
      expect(to).toBeGreaterThan(high);
      expect(to - from).toBeLessThan(Math.max(1.4 * high - from, 4 * (high - low)));
    }
  });

  test("ticks within a range lie within it, at round values", () => {
    const { values, texts } = ticksWithin([3900, 4200], 6);
    expect(values[0]).toBeGreaterThanOrEqual(3900);
    expect(values.at(-1)).toBeLessThanOrEqual(4200);
    expect(values.length).toBeGreaterThanOrEqual(3);
    expect(texts).toContain("4,000");
  });

  test("a growing axis always holds all of the run and moves in few steps", () => {
    const ends = new Set<number>();
    for (let elapsed = 10; elapsed < 100; elapsed += 0.25) {
      ends.add(growingEnd(elapsed));
      expect(growingEnd(elapsed)).toBeGreaterThanOrEqual(elapsed);
      expect(growingEnd(elapsed)).toBeLessThanOrEqual(1.25 * elapsed);
    }
    expect(ends.size).toBeLessThan(30);
  });
});
