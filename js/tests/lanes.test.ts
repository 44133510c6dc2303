import { describe, expect, test } from "vitest";
import type { Bar } from "../src/core/bar.ts";
import { readBar } from "../src/core/hover.ts";
import { layLanes } from "../src/core/lanes.ts";
import type { Span } from "../src/core/protocol.ts";
import { span, stepRow, tableOf } from "./frames.ts";

type Training = { spans: Span[]; steps: number[][] };

function lay({ spans, steps }: Training, range: readonly [number, number] = [0, 100], pixels = 700): Bar[] {
  return layLanes(spans, tableOf(steps), { device: "cuda:0", now: 100, range, pixels });
}

function only(...spans: Span[]): Training {
  return { spans, steps: [] };
}

function training(count: number, rise = 50): Training {
  const each = 90 / count;
  const spans = [
    span(1, null, "cell", 0, 100, 50),
    span(2, 1, "train", 2, 98, 50),
    span(3, 2, "epoch", 4, 96, 50),
  ];
  const steps = Array.from({ length: count }, (_, index) => {
    const [start, stop] = [5 + index * each, 5 + (index + 1) * each];
    const peak = index === Math.floor(count / 3) ? rise : 30;
    return stepRow({ number: index + 1, parent: 3, start, stop, peak, tokens: index + 1 });
  });
  return { spans, steps };
}

describe("layLanes", () => {
  test("spans lie below their parents, and a train around epochs takes no lane", () => {
    const lanes = Object.fromEntries(lay(training(2)).map((bar) => [bar.kind, bar.lane]));
    expect(lanes).toEqual({ cell: 0, epoch: 1, step: 2 });
  });

  test("an open span grows to now", () => {
    const [bar] = lay(only({ ...span(1, null, "cell", 3, 4), stop: null, outcome: "" }));
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

  test("steps of very many parents are bounded too", () => {
    const { spans, steps } = training(3000);
    const apart = steps.map((row, index) => [1000 + index, ...row.slice(1)]);
    expect(lay({ spans, steps: apart }).length).toBeLessThanOrEqual(400);
  });

  test("the worst step stays apart, on top, however many there are", () => {
    for (const steps of [10, 2000, 20_000]) {
      const worst = lay(training(steps)).filter((bar) => bar.worst);
      const number = Math.floor(steps / 3) + 1;
      expect(worst).toMatchObject([{ label: `step ${number}`, peak: 50, count: 1 }]);
      expect(Math.abs(worst[0]!.start - (5 + ((number - 1) * 90) / steps))).toBeLessThan(1);
      expect(lay(training(steps)).at(-1)).toMatchObject({ worst: true });
    }
  });

  test("a group reads as a range and knows its worst step, the tokens of it, and its peak", () => {
    const bars = lay(training(20_000));
    expect(bars.find((bar) => bar.count > 1)!.label).toMatch(/^steps 1–\d+$/);
    const group = bars.find((bar) => bar.count > 1 && bar.peak === 50)!;
    expect(group.steps!.memory).toMatchObject({ worst: 6667, worstTokens: 6667 });
    expect(readBar(group, { fold: null }).rows).toContainEqual(["worst", "step 6667, 6,667 tokens"]);
  });

  test("of steps that share a peak none is the worst, and all of them stand out", () => {
    const { spans, steps } = training(9);
    const shared = stepRow({ number: 3, parent: 3, start: 25, stop: 65, peak: 50, tokens: 9 });
    shared[2] = 6; // its last step
    shared[12] = 0; // its worst
    const bars = lay({ spans, steps: [...steps.slice(0, 2), shared, ...steps.slice(6)] });
    const worst = bars.find((bar) => bar.worst)!;
    expect(worst).toMatchObject({ label: "steps 3–6", peak: 50, count: 4 });
    expect(readBar(worst, { fold: null }).rows.map(([name]) => name)).toEqual(["duration", "tokens", "peak"]);
  });

  test("groups keep their members while the window slides", () => {
    const members = (from: number) =>
      lay(training(1000), [from, from + 90])
        .filter((bar) => bar.count > 1)
        .map(({ label }) => label);
    const [before, after] = [members(5), members(7)];
    expect(after.filter((label) => before.includes(label)).length).toBeGreaterThan(after.length - 5);
  });

  test("steps that all rose as high have no worst", () => {
    expect(lay(training(9, 30)).some((bar) => bar.worst)).toBe(false);
  });

  test("an evaluation is drawn over the group of steps around it, in their lane", () => {
    const { spans, steps } = training(5000);
    const bars = lay({ spans: [...spans, span(4, 3, "evaluate", 40, 50)], steps });
    const evaluation = bars.findIndex((bar) => bar.kind === "evaluate");
    expect(bars[evaluation]!.lane).toBe(bars.find((bar) => bar.kind === "step")!.lane);
    expect(evaluation).toBeGreaterThan(bars.findLastIndex((bar) => bar.kind === "step" && !bar.worst));
  });

  test("steps whose span was dropped are in the lane of the others", () => {
    const { spans, steps } = training(8);
    const early = steps.map((row, index) => [index < 4 ? 77 : 3, ...row.slice(1)]);
    const lanes = lay({ spans, steps: early }).filter(({ kind }) => kind === "step");
    expect(new Set(lanes.map(({ lane }) => lane))).toEqual(new Set([2]));
  });

  test("one step reads its batch, its tokens, its peak and that of each phase", () => {
    const [bar] = lay({ spans: [], steps: [stepRow({ number: 97, tokens: 1024, peak: 7 * 2 ** 30 })] });
    expect(readBar(bar!, { fold: null })).toEqual({
      title: "step 97",
      rows: [
        ["duration", "1.0 s"],
        ["tokens", "1,024 (4 × 256)"],
        ["peak", "7.00 GiB exact"],
        ["in forward", "7.00 GiB"],
        ["in backward", "7.00 GiB"],
        ["in optimizer", "0.00 MiB"],
      ],
    });
  });

  test("only visible bars are drawn", () => {
    expect(lay(training(10), [0, 1]).map((bar) => bar.kind)).toEqual(["cell"]);
  });
});
