import { describe, expect, test } from "vitest";
import { type Bar, layLanes, rangeLabel } from "../src/core/lanes.ts";
import type { Span } from "../src/core/protocol.ts";
import { span } from "./frames.ts";

function lay(spans: Span[], range: readonly [number, number] = [0, 100], pixels = 700): Bar[] {
  return layLanes(spans, { device: "cuda:0", now: 100, range, pixels });
}

function training(steps: number): Span[] {
  const each = 90 / steps;
  return [
    span(1, null, "cell", 0, 100, 50),
    span(2, 1, "train", 2, 98, 50),
    span(3, 2, "epoch", 4, 96, 50),
    ...Array.from({ length: steps }, (_, index) => {
      const peak = index === Math.floor(steps / 3) ? 50 : 30;
      return {
        ...span(4 + index, 3, "step", 5 + index * each, 5 + (index + 1) * each, peak),
        label: `step ${index + 1}`,
      };
    }),
  ];
}

describe("layLanes", () => {
  test("spans lie below their parents, and a train around epochs takes no lane", () => {
    const lanes = Object.fromEntries(lay(training(2)).map((bar) => [bar.kind, bar.lane]));
    expect(lanes).toEqual({ cell: 0, epoch: 1, step: 2 });
  });

  test("a train without epochs keeps its lane", () => {
    expect(lay([span(1, null, "cell", 0, 9), span(2, 1, "train", 1, 8)]).map((bar) => bar.lane)).toEqual([
      0, 1,
    ]);
  });

  test("spans that overlap do not share a lane", () => {
    const bars = lay([
      span(1, null, "block", 0, 9),
      span(2, null, "block", 5, 12),
      span(3, null, "block", 9, 10),
    ]);
    expect(bars.map((bar) => [bar.label, bar.lane])).toEqual([
      ["block 1", 0],
      ["block 3", 0],
      ["block 2", 1],
    ]);
  });

  test("an open span grows to now", () => {
    const [bar] = lay([{ ...span(1, null, "cell", 3, 4), stop: null, outcome: "" }]);
    expect(bar).toMatchObject({ start: 3, stop: 100, open: true });
  });

  test("any number of steps folds into at most 400 bars that cover them all", () => {
    for (const steps of [10, 100, 1000, 20_000]) {
      const bars = lay(training(steps));
      expect(bars.length).toBeLessThanOrEqual(400);
      const groups = bars.filter((bar) => bar.kind === "step" && !bar.worst);
      expect(groups.reduce((sum, bar) => sum + bar.count, 0)).toBe(steps);
    }
  });

  test("the worst step stays apart, on top, however many there are", () => {
    for (const steps of [10, 20_000]) {
      const worst = lay(training(steps)).filter((bar) => bar.worst);
      expect(worst).toHaveLength(1);
      expect(worst[0]).toMatchObject({ label: `step ${Math.floor(steps / 3) + 1}`, peak: 50, count: 1 });
      expect(lay(training(steps)).at(-1)).toMatchObject({ worst: true });
    }
  });

  test("a group reads as a range and knows its worst peak", () => {
    const group = lay(training(20_000)).find((bar) => bar.count > 1)!;
    expect(group.label).toMatch(/^steps 1–\d+$/);
    expect(lay(training(20_000)).some((bar) => bar.count > 1 && bar.peak === 50)).toBe(true);
  });

  test("steps that all rose as high have no worst", () => {
    const steps = Array.from({ length: 9 }, (_, index) => span(index + 1, null, "step", index, index + 1, 7));
    expect(lay(steps).some((bar) => bar.worst)).toBe(false);
  });

  test("only what is in view is drawn", () => {
    expect(lay(training(10), [0, 1]).map((bar) => bar.kind)).toEqual(["cell"]);
  });

  test("a span whose parent is not known stands on its own", () => {
    expect(lay([span(9, 8, "step", 0, 1)])).toMatchObject([{ lane: 0 }]);
  });

  test("labels that are not numbered alike are written out", () => {
    expect(rangeLabel("step 1", "step 250")).toBe("steps 1–250");
    expect(rangeLabel("load", "save")).toBe("load – save");
  });
});
