import { describe, expect, test } from "vitest";
import { composeScene } from "../src/core/compose.ts";
import { toFigure } from "../src/core/figure.ts";
import { readTime } from "../src/core/hover.ts";
import { decodeFindings, decodeGuides, type Finding, type Guide } from "../src/core/judged.ts";
import { findingsIn, warningsOf } from "../src/core/notice.ts";
import type { Scene } from "../src/core/scene.ts";
import { defaultSettings } from "../src/core/settings.ts";
import { Store } from "../src/core/store.ts";
import { fromFrame, toFrame } from "../src/hosts/panel/remembered.ts";
import { message, random, STATUS, span } from "./frames.ts";

const THEME = { text: "#111", muted: "#666", line: "#ddd", surface: "#fff", font: "sans-serif" };
const HOSTILE = "<img src=x onerror=alert(1)> $\\href{javascript:alert(1)}{x}$ a<br>b";

function finding(more: Partial<Finding> = {}): Finding {
  const bare = { kind: "budget", severity: "warn" as const, title: "over 20 B", span: 1, device: "cuda:0" };
  return { ...bare, time: 4, ...more };
}

function guide(more: Partial<Guide> = {}): Guide {
  const level = { start: 0, stop: null, first: 20, last: 20, band: [0, 0] as [number, number] };
  return { device: "cuda:0", kind: "budget", label: "budget 20 B", ...level, ...more };
}

const RAN_OUT = {
  kind: "oom",
  label: "out of memory: asked 9 B",
  start: 4,
  stop: 4,
  first: 12,
  last: 12,
} as const;
const TREND = { kind: "trend", label: "+2 B a step", start: 2, stop: 8, first: 4, last: 16 } as const;

/** A cell of ten seconds in which allocated memory rises to `top` bytes of a thousand. */
function storeOf(top: number, more: object = {}): Store {
  const store = new Store(Date.now);
  const rows = Array.from({ length: 11 }, (_, at) => [at, (top * at) / 10, 0, 0, 1, 1, 1] as const);
  const status = { ...STATUS, elapsed: 10, state: "stopped" };
  const spans = [span(1, null, "cell", 0, 10, top)];
  store.apply(message("snapshot", 0, rows as never, { status, spans, ...more }));
  return store;
}

function sceneOf(store: Store, more: { settings?: object; width?: number } = {}): Scene {
  const settings = { ...defaultSettings(), device: "cuda:0", ...more.settings };
  const { width = 700 } = more;
  const hold = { key: "", top: 0, end: 0, lanes: 0 };
  return composeScene({ store, settings, now: 10, width, height: 180, textWidth: (t) => 7 * t.length }, hold);
}

function figureOf(store: Store, more = {}) {
  const drawn = toFigure(sceneOf(store, more), THEME, 1, (text, pixels) => 0.6 * pixels * text.length);
  const layout = drawn.layout as { shapes: Record<string, unknown>[]; annotations: { text: string }[] };
  return { data: drawn.data as { uid: string; x: number[]; y: number[] }[], layout };
}

describe("decoding findings and guides", () => {
  test("malformed entries are left out, and the rest stays", () => {
    const bad = [null, 7, "x", [], {}, { ...finding(), severity: "worst" }, { ...finding(), title: 3 }];
    expect(decodeFindings([...bad, finding()])).toEqual([finding()]);
    const lines = [{ kind: "curve" }, { first: Number.NaN }, { last: "9" }, { start: null }, { band: [1] }];
    const more = [{ band: 1 }, { band: ["a", 1] }, { label: null }, { device: {} }, { first: Infinity }];
    const wrong = [...lines, ...more].map((each) => ({ ...guide(), ...each }));
    expect(decodeGuides([null, ...wrong, guide()])).toEqual([guide()]);
  });

  test("no list makes nothing", () => {
    for (const told of [null, 3, "findings", { length: 4 }, Number.NaN]) {
      expect(decodeFindings(told)).toEqual([]);
      expect(decodeGuides(told)).toEqual([]);
    }
  });

  test("there are never more, and never longer ones, than a page has room for", () => {
    const title = "x".repeat(100_000);
    const findings = decodeFindings(Array.from({ length: 5000 }, () => finding({ title })));
    const guides = decodeGuides(Array.from({ length: 5000 }, () => guide({ label: title })));
    expect([findings.length, guides.length]).toEqual([8, 30]);
    expect(Math.max(...findings.map((one) => one.title.length))).toBeLessThan(300);
    expect(Math.max(...guides.map((one) => one.label.length))).toBeLessThan(300);
  });

  test("nothing throws, whatever it is", () => {
    const next = random(5);
    const values = [null, undefined, Number.NaN, Infinity, -1, "a", {}, [], [1, 2], true, 1e308];
    const any = () => values[Math.floor(next() * values.length)];
    for (let attempt = 0; attempt < 500; attempt++) {
      const entry = Object.fromEntries(
        [...Object.keys(finding()), ...Object.keys(guide())].map((key) => [key, any()]),
      );
      expect(() => [decodeFindings([entry, any()]), decodeGuides([entry, any()])]).not.toThrow();
    }
  });

  test("a figure that nothing could have read is none", () => {
    const figures = [1e300, -1e300, Number.POSITIVE_INFINITY].map((first) => ({ ...guide(), first }));
    expect(decodeGuides(figures)).toEqual([]);
    expect(decodeGuides([{ ...guide(), stop: 1e300 }])).toEqual([guide()]);
    expect(decodeFindings([{ ...finding(), time: 1e300 }])).toEqual([finding({ time: null })]);
    const kept = [[1, 2], [3], 4, [5, 1e300], ["6", 7]];
    expect(decodeFindings([{ ...finding(), kept }])).toEqual([finding({ kept: [[1, 2]] })]);
  });
});

describe("a store", () => {
  test("keeps the last findings until others come", () => {
    const store = storeOf(30, { findings: [finding()], guides: [guide()] });
    store.apply(message("rows", 1, []));
    expect([store.findings.length, store.guides.length]).toEqual([1, 1]);
    store.apply(message("rows", 2, [], { guides: [guide(), guide(TREND)] }));
    expect([store.findings.length, store.guides.length]).toEqual([1, 2]);
    store.apply(message("snapshot", 3, []));
    expect([store.findings, store.guides]).toEqual([[], []]);
  });

  test("knows nothing of a run that begins", () => {
    const store = storeOf(30, { findings: [finding()], guides: [guide()] });
    store.apply(message("snapshot", 0, [], { run: "b" }));
    expect([store.findings, store.guides]).toEqual([[], []]);
  });

  test("is remembered with it when the page is reloaded", () => {
    const before = storeOf(30, { findings: [finding()], guides: [guide(), guide(TREND), guide(RAN_OUT)] });
    const after = new Store(Date.now);
    after.apply(fromFrame(toFrame(before)!));
    expect([after.findings, after.guides]).toEqual([before.findings, before.guides]);
  });
});

describe("a budget", () => {
  test("is drawn from sixty percent of it", () => {
    expect(sceneOf(storeOf(11, { guides: [guide()] })).guides).toEqual([]);
    expect(sceneOf(storeOf(12.5, { guides: [guide()] })).guides).toHaveLength(1);
  });

  test("is within the axis, and no label straddles it", () => {
    for (const top of [13, 16, 18, 19, 19.9, 20, 24, 60]) {
      const scene = sceneOf(storeOf(top, { guides: [guide()] }));
      expect(scene.top, String(top)).toBeGreaterThan(20);
      const line = (180 - scene.lanesHeight) * (1 - 20 / scene.top);
      const { box } = scene.peak!;
      expect(line > box.top && line < box.top + box.height, String(top)).toBe(false);
    }
  });

  test("is another device's only there, and not where allocated memory is hidden", () => {
    const store = storeOf(30, { guides: [guide({ device: "cpu" }), guide()] });
    expect(sceneOf(store).guides).toHaveLength(1);
    expect(sceneOf(store, { settings: { hidden: new Set(["allocated"]) } }).guides).toEqual([]);
  });

  test("is dashed over the whole width, and marked where it was crossed", () => {
    const figure = figureOf(storeOf(30, { guides: [guide()], findings: [finding()] }));
    expect(figure.layout.shapes).toContainEqual(
      expect.objectContaining({ x0: 0, x1: 10, line: { color: "#D55E00", width: 1, dash: "6px,4px" } }),
    );
    expect(figure.data.find(({ uid }) => uid === "crossing-0")).toMatchObject({ x: [4] });
  });

  test("has no mark without a time, or outside of the visible range", () => {
    const crossing = (findings: Finding[], settings = {}) =>
      figureOf(storeOf(30, { guides: [guide()], findings }), { settings }).data.some(
        ({ uid }) => uid === "crossing-0",
      );
    expect(crossing([finding({ time: null })])).toBe(false);
    expect(crossing([finding({ kind: "leak" })])).toBe(false);
    expect(crossing([finding({ device: "cpu" })])).toBe(false);
    expect(crossing([finding()], { zoom: [6, 9] })).toBe(false);
    expect(crossing([finding()], { zoom: [3, 9] })).toBe(true);
  });

  test("is read by the pointer", () => {
    const store = storeOf(30, { guides: [guide(), guide(TREND)] });
    const read = (x: number) => readTime(store, "cuda:0", sceneOf(store), x)!.rows.map(([name]) => name);
    expect(read(350)).toEqual(expect.arrayContaining(["budget", "+2 B a step"]));
    expect(read(35)).not.toContain("+2 B a step");
  });
});

describe("the words on level lines", () => {
  /** Peak, budget and capacity of a thousand, in every order and at every width. */
  const scenes = [320, 500, 900].flatMap((width) =>
    [620, 700, 900, 940, 990].flatMap((top) =>
      [650, 880, 930, 970, 995].map((last) => {
        const guides = [guide({ first: last, last })];
        return sceneOf(storeOf(top, { guides, findings: [finding()] }), { width });
      }),
    ),
  );

  test("never cover each other, the peak, its label or a line", () => {
    const crosses = (a: Box, b: Box) =>
      a.left < b.left + b.width &&
      b.left < a.left + a.width &&
      a.top < b.top + b.height &&
      b.top < a.top + a.height;
    for (const { words, peak, ...scene } of scenes) {
      const boxes = [...words.map(({ box }) => box), peak!.box];
      boxes.forEach((one, at) => {
        for (const two of boxes.slice(at + 1)) expect(crosses(one, two)).toBe(false);
      });
      for (const { box } of words) {
        expect(box.left).toBeGreaterThanOrEqual(0);
        expect(box.left + box.width).toBeLessThanOrEqual(scene.width);
      }
    }
  });

  test("name the budget, wherever it is drawn", () => {
    for (const { words, guides } of scenes) {
      expect(words.filter(({ text }) => text === "budget 20 B")).toHaveLength(guides.length);
    }
  });

  test("are placed beside data above the line, if there is room", () => {
    // The peak itself, which no word covers either, is not looked at.
    const settings = { zoom: [0, 9.5] };
    const at = (top: number) => sceneOf(storeOf(top, { guides: [guide()] }), { settings }).words[0]!.box.left;
    expect(at(17)).toBeGreaterThan(350);
    expect(at(50)).toBe(0);
  });

  test("stand out once the line is crossed", () => {
    const alarming = (top: number) =>
      sceneOf(storeOf(top, { guides: [guide()] })).words.map((word) => word.isAlarming);
    expect(alarming(19)).toEqual([false]);
    expect(alarming(21)).toEqual([true]);
  });
});

describe("a trend", () => {
  test("is a line with its band, cut to the visible range", () => {
    const guides = [guide({ ...TREND, band: [2, 6] })];
    const { data } = figureOf(storeOf(30, { guides }), { settings: { zoom: [5, 10] } });
    const drawn = (uid: string) => data.find((trace) => trace.uid === uid)!;
    const mib = 2 ** 20;
    expect(drawn("trend-0").x).toEqual([5, 8]);
    expect(drawn("trend-0").y.map((value) => value * mib)).toEqual([10, 16]);
    expect(drawn("trend-band-0").y.map((value) => value * mib)).toEqual([14, 22, 10, 6]);
  });

  test("is not drawn where none of it is looked at", () => {
    const store = storeOf(30, { guides: [guide(TREND)] });
    expect(sceneOf(store, { settings: { zoom: [8.5, 10] } }).guides).toEqual([]);
  });
});

describe("the instant at which memory ran out", () => {
  const marksIn = (store: Store, settings = {}) =>
    figureOf(store, { settings }).data.find(({ uid }) => uid === "ran-out") as { x: number[]; y: number[] };

  test("is marked at the allocated bytes of that moment", () => {
    const mark = marksIn(storeOf(30, { guides: [guide(RAN_OUT)] }));
    expect([mark.x, mark.y.map((value) => value * 2 ** 20)]).toEqual([[4], [12]]);
  });

  test("is not marked where it is not looked at, or was on another device", () => {
    expect(marksIn(storeOf(30, { guides: [guide(RAN_OUT)] }), { zoom: [5, 9] }).x).toEqual([]);
    expect(marksIn(storeOf(30, { guides: [guide({ ...RAN_OUT, device: "cpu" })] })).x).toEqual([]);
  });

  test("has a word, if it is the newest; the others have their marks", () => {
    const times = [6, 2, 3, 2.2];
    const guides = times.map((start) => guide({ ...RAN_OUT, start, stop: start, label: `at ${start}` }));
    const store = storeOf(30, { guides });
    expect(marksIn(store).x).toEqual([2, 2.2, 3, 6]);
    expect(sceneOf(store).words.map(({ text, isAlarming }) => [text, isAlarming])).toEqual([["at 6", true]]);
  });

  test("is within the axis, also above the samples", () => {
    expect(
      sceneOf(storeOf(30, { guides: [guide({ ...RAN_OUT, first: 70, last: 70 })] })).top,
    ).toBeGreaterThan(70);
  });

  test("has its word within the plot, clear of marks, of the peak and of lines", () => {
    for (const width of [300, 700])
      for (const start of [0, 4, 9.9, 10])
        for (const last of [0, 5, 15, 30]) {
          const guides = [guide({ ...RAN_OUT, start, stop: start, first: last, last }), guide()];
          const scene = sceneOf(storeOf(30, { guides }), { width });
          const { box } = scene.words.find(({ text }) => text === RAN_OUT.label)!;
          const plotHeight = 180 - scene.lanesHeight;
          const told = `${width} ${start} ${last}`;
          expect(box.left, told).toBeGreaterThanOrEqual(0);
          expect(box.left + box.width, told).toBeLessThanOrEqual(width);
          expect(box.top, told).toBeGreaterThanOrEqual(0);
          expect(box.top + box.height, told).toBeLessThanOrEqual(plotHeight);
          const mark = plotHeight * (1 - last / scene.top);
          expect(mark > box.top && mark < box.top + box.height, told).toBe(false);
          const level = plotHeight * (1 - 20 / scene.top);
          expect(level > box.top && level < box.top + box.height, told).toBe(false);
        }
  });

  test("is read by the pointer on it, and nowhere else", () => {
    const store = storeOf(30, { guides: [guide(RAN_OUT)] });
    const scene = sceneOf(store);
    const read = (x: number) => readTime(store, "cuda:0", scene, x)!.rows;
    expect(read(280)).toContainEqual(["out of memory", "asked 9 B"]);
    expect(read(300).map(([name]) => name)).not.toContain("out of memory");
  });
});

describe("its texts", () => {
  test("text from outside reaches Plotly escaped", () => {
    const { layout } = figureOf(storeOf(30, { guides: [guide({ label: HOSTILE })] }));
    const texts = layout.annotations.map(({ text }) => text);
    expect(texts.some((text) => text.includes("&lt;img"))).toBe(true);
    for (const text of texts) expect(text).not.toMatch(/[<$]/);
  });

  test("the most severe of the newest cell comes first, and a note is not a warning", () => {
    const spans = [span(1, null, "cell", 0, 4), span(2, null, "cell", 5, 9), span(3, 2, "train", 6, 8)];
    const findings = [
      finding({ title: "of an older cell", severity: "critical" }),
      finding({ title: "a note", span: 2, severity: "info" }),
      finding({ title: "of its training", span: 3 }),
      finding({ title: "of none", span: null, severity: "critical" }),
    ];
    const store = storeOf(30, { spans, findings });
    expect(warningsOf(store).map(({ title }) => title)).toEqual(["of none", "of its training"]);
    const first = store.spans.get(1)!;
    expect(findingsIn(store, first).map(({ title }) => title)).toEqual(["of an older cell"]);
  });
});

type Box = Scene["words"][number]["box"];
