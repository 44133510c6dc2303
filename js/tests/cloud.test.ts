import { describe, expect, test } from "vitest";
import { type Cloud, composeCloud, hasCloud, pointAt, readPoint, toPixels } from "../src/core/cloud.ts";
import { toCloudFigure } from "../src/core/cloudfigure.ts";
import { defaultSettings } from "../src/core/settings.ts";
import { Store } from "../src/core/store.ts";
import { message, random, type Step, stepRow, tableOf } from "./frames.ts";

const GIB = 2 ** 30;
const THEME = { text: "#111", muted: "#666", line: "#ddd", surface: "#fff", font: "sans-serif" };

function storeWith(steps: Step[]): Store {
  const store = new Store(Date.now);
  store.apply(message("snapshot", 0, []));
  store.steps = tableOf(steps.map(stepRow));
  return store;
}

function cloudOf(steps: Step[], settings = {}): Cloud {
  const all = { ...defaultSettings(), device: "cuda:0", ...settings };
  return composeCloud(storeWith(steps), all, 700, 180);
}

function byTokens(...tokens: number[]): Step[] {
  return tokens.map((each, index) => ({ number: index + 1, tokens: each, peak: each * 1e6 }));
}

describe("hasCloud", () => {
  test("three steps whose tokens differ are enough", () => {
    expect(hasCloud(storeWith(byTokens(100, 200, 300)), "cuda:0")).toBe(true);
  });

  test("padding to one length, tokens that are not known, and devices without peaks are not", () => {
    expect(hasCloud(storeWith(byTokens(512, 512, 512, 512, 100)), "cuda:0")).toBe(false);
    expect(hasCloud(storeWith(byTokens(100, 200, Number.NaN, Number.NaN)), "cuda:0")).toBe(false);
    expect(hasCloud(storeWith(byTokens(100, 200, 300)), "cpu")).toBe(false);
    expect(hasCloud(storeWith([]), "cuda:0")).toBe(false);
  });
});

describe("composeCloud", () => {
  test("each step is a point, in the picture", () => {
    const cloud = cloudOf(byTokens(100, 700, 300, 500));
    expect(cloud.points).toHaveLength(4);
    for (const { tokens, memory } of cloud.points) {
      const [x, y] = toPixels(cloud, tokens, memory.peak);
      expect(x > 0 && x <= 700 && y >= 0 && y < 180).toBe(true);
    }
  });

  test("the worst is named with its tokens and its peak", () => {
    const steps = byTokens(100, 700, 300).map((step) => ({ ...step, peak: step.tokens! * 0.01 * GIB }));
    expect(cloudOf(steps).worst).toMatchObject({
      tokens: 700,
      text: "step 2 · 700 tokens · peak 7.00 GiB exact",
    });
  });

  test("thousands of steps are few points, and the worst is drawn", () => {
    const next = random(2);
    const steps = Array.from({ length: 4000 }, (_, index) => ({
      number: index + 1,
      tokens: 1 + Math.floor(4000 * next()),
      peak: Math.floor(1e9 * next()),
    }));
    const cloud = cloudOf(steps);
    expect(cloud.points.length).toBeLessThanOrEqual(800);
    expect(cloud.worst!.memory.peak).toBe(Math.max(...steps.map(({ peak }) => peak)));
  });

  test("axes begin at zero, unless the data lie far above it", () => {
    expect(cloudOf(byTokens(100, 700, 300)).x.range[0]).toBe(0);
    const narrow = cloudOf(byTokens(4000, 4040, 4096)).x.range;
    expect(narrow[0]).toBeGreaterThan(3500);
    expect(narrow[1]).toBeGreaterThanOrEqual(4096);
  });

  test("percent of capacity where that was chosen", () => {
    expect(cloudOf(byTokens(100, 700, 300), { percent: true }).unit).toEqual({ divisor: 10, name: "%" });
  });
});

describe("hovering a point", () => {
  const cloud = cloudOf(byTokens(100, 700, 300));

  test("reads its step, its tokens and its peak", () => {
    const { tokens, memory } = cloud.points[2]!;
    const [x, y] = toPixels(cloud, tokens, memory.peak);
    expect(readPoint(pointAt(cloud, x + 3, y - 3)!)).toEqual({
      title: "step 3",
      rows: [
        ["tokens", "300"],
        ["peak", "286.1 MiB exact"],
        ["after", "0.00 MiB"],
      ],
    });
  });

  test("reads nothing where there is none near", () => {
    expect(pointAt(cloud, 5, 175)).toBeNull();
  });
});

describe("toCloudFigure", () => {
  function label(width: number): { text: string; middle: number } {
    const settings = { ...defaultSettings(), device: "cuda:0" };
    const cloud = composeCloud(storeWith(byTokens(100, 700, 300)), settings, width, 180);
    const { layout } = toCloudFigure(cloud, THEME, 1, (text) => 6 * text.length);
    const { annotations } = layout as { annotations: { text: string; x: number }[] };
    const { text, x } = annotations.find((one) => one.text.startsWith("step"))!;
    return { text, middle: toPixels(cloud, x, 0)[0] };
  }

  test("the worst point's label fits its chart, shorter where that is narrow", () => {
    for (const [width, text] of [
      [700, "step 2 · 700 tokens · peak 667.6 MiB exact"],
      [220, "step 2 · peak 667.6 MiB exact"],
    ] as const) {
      const half = 3 * text.length + 3;
      expect(label(width).text).toBe(text);
      expect(label(width).middle).toBeGreaterThanOrEqual(half - 1e-6);
      expect(label(width).middle).toBeLessThanOrEqual(width - half + 1e-6);
    }
  });

  test("no text of it means anything to Plotly but itself", () => {
    const figure = toCloudFigure(cloudOf(byTokens(100, 700, 300)), THEME, 1, (text) => 6 * text.length);
    expect(JSON.stringify(figure)).not.toMatch(/<|\$|>/);
  });
});
