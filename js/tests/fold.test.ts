import { describe, expect, test } from "vitest";
import { composeScene } from "../src/core/compose.ts";
import { toFigure } from "../src/core/figure.ts";
import { type Fold, foldOf } from "../src/core/fold.ts";
import { readBar, readTime } from "../src/core/hover.ts";
import { timeToPixel } from "../src/core/scene.ts";
import { defaultSettings } from "../src/core/settings.ts";
import { Store } from "../src/core/store.ts";
import { message, STATUS, span, stepRow, tableOf } from "./frames.ts";

const THEME = { text: "#111", muted: "#666", line: "#ddd", surface: "#fff", font: "sans-serif" };

/** Two cells of ten seconds with an hour between them. */
const CELLS = [span(1, null, "cell", 5, 15, 40), span(2, null, "cell", 3615, 3625, 90)];

function notebook(): Store {
  const store = new Store(Date.now);
  const times = [5, 10, 15, 3615, 3620, 3625];
  const rows = times.map((time): [number, ...number[]] => [time, time === 3620 ? 90 : 40, 95, 96, 1, 1, 1]);
  store.apply(message("snapshot", 0, rows, { status: { ...STATUS, elapsed: 3625 }, spans: CELLS }));
  return store;
}

function sceneOf(store: Store) {
  const settings = { ...defaultSettings(), device: "cuda:0" };
  const size = { width: 700, height: 180, textWidth: (text: string) => 7 * text.length };
  return composeScene(
    { store, settings, now: store.status!.elapsed, ...size },
    { key: "", top: 0, end: 0, lanes: 0 },
  );
}

describe("a notebook's cells", () => {
  test("are as wide as they are long, and the pause between them is short", () => {
    const fold = foldOf(CELLS, 3625) as Fold;
    const [first, pause, second] = [
      [5, 15],
      [15, 3615],
      [3615, 3625],
    ].map(([start, stop]) => fold.toAxis(stop!) - fold.toAxis(start!));
    expect([first, second]).toEqual([10, 10]);
    expect(pause).toBeLessThan(1);
  });

  test("are drawn in order, and each place is read back as the second that is drawn there", () => {
    const fold = foldOf(CELLS, 3700) as Fold;
    const times = Array.from({ length: 371 }, (_, index) => 10 * index);
    const drawn = times.map((time) => fold.toAxis(time));
    expect(drawn).toEqual(drawn.toSorted((a, b) => a - b));
    times.forEach((time, index) => {
      expect(fold.toTime(drawn[index]!)).toBeCloseTo(time, 6);
    });
  });

  test("keep their places while later ones are added", () => {
    const more = [...CELLS, span(3, null, "cell", 7200, 7201, 1)];
    expect(foldOf(more, 7201)!.toAxis(3620)).toBe(foldOf(CELLS, 3625)!.toAxis(3620));
  });

  test("take the whole chart, with their steps and their peak", () => {
    const store = notebook();
    store.steps = tableOf([stepRow({ number: 1, parent: 2, start: 3616, stop: 3624, peak: 90 })]);
    const scene = sceneOf(store);
    const bars = scene.bars.filter(({ kind }) => kind === "cell");
    const step = scene.bars.find(({ kind }) => kind === "step")!;
    expect(step.start - bars[1]!.start).toBeCloseTo(1, 6);
    const pixels = bars.map(({ start, stop }) => timeToPixel(scene, stop) - timeToPixel(scene, start));
    expect(Math.min(...pixels)).toBeGreaterThan(0.35 * scene.width);
    expect(scene.peak!.time).toBeGreaterThan(bars[1]!.start);
    expect(scene.x.at(-1)).toBeLessThan(30);
  });

  test("read as they were: the time of day, and how long each took", () => {
    const store = notebook();
    const scene = sceneOf(store);
    const clock = (second: number) => new Date(1000 * second).toTimeString().slice(0, 8);
    const x = timeToPixel(scene, scene.fold!.toAxis(3620));
    expect(readTime(store, "cuda:0", scene, x)!.title).toBe(`at ${clock(3620)}`);
    expect(readBar(scene.bars[1]!, scene).rows[0]).toEqual(["duration", "10.0 s"]);
    const { layout } = toFigure(scene, THEME, 1, (text) => 7 * text.length);
    const { ticktext } = (layout as { xaxis: { ticktext: string[] } }).xaxis;
    expect(ticktext.every((text) => /^(\d\d:\d\d:\d\d)?$/.test(text))).toBe(true);
  });
});

test("one cell, and cells with short pauses, are drawn over plain seconds", () => {
  expect(foldOf(CELLS.slice(0, 1), 3625)).toBeNull();
  expect(foldOf([span(1, null, "cell", 0, 5, 1), span(2, null, "cell", 7, 9, 1)], 9)).toBeNull();
});
