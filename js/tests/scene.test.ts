import { describe, expect, test } from "vitest";
import { contrast } from "../src/core/colors.ts";
import { composeScene, type Hold } from "../src/core/compose.ts";
import { POINT_BUDGET } from "../src/core/decimate.ts";
import { toFigure } from "../src/core/figure.ts";
import { barAt, readTime } from "../src/core/hover.ts";
import { findPeak } from "../src/core/peak.ts";
import { placeLabel } from "../src/core/place.ts";
import { LANE_PIXELS, namesIn } from "../src/core/scene.ts";
import { defaultSettings } from "../src/core/settings.ts";
import { Store } from "../src/core/store.ts";
import { level, message, PARTS_SCHEMA, partRow, SCHEMA, STATUS, span, stepRow, tableOf } from "./frames.ts";

const THEME = { text: "#111", muted: "#666", line: "#ddd", surface: "#fff", font: "sans-serif" };
const HOSTILE = [
  "<img src=x onerror=alert(1)>",
  "$\\href{javascript:alert(1)}{x}$",
  "<b>a</b>&amp;%{x}",
  "a<br>b",
];

function held(): Hold {
  return { key: "", top: 0, end: 0, lanes: 0 };
}

function storeWith(rows: ReturnType<typeof level>[], more: object = {}): Store {
  const store = new Store(Date.now);
  const elapsed = rows.at(-1)?.[0] ?? 0;
  store.apply(message("snapshot", 0, rows, { status: { ...STATUS, elapsed }, ...more }));
  return store;
}

function sceneOf(store: Store, hold = held(), settings = {}) {
  const all = { ...defaultSettings(), device: "cuda:0", ...settings };
  const now = store.status!.elapsed;
  return composeScene(
    { store, settings: all, now, width: 700, height: 180, textWidth: (t) => 7 * t.length },
    hold,
  );
}

/** allocated, reserved, device_used of cuda:0, then the same of the cpu. */
function row(time: number, allocated: number, reserved: number, used: number): ReturnType<typeof level> {
  return [time, allocated, reserved, used, 1, 1, 1];
}

describe("findPeak", () => {
  test("the exact peak is at the highest sample of the tightest span", () => {
    const rows = [0, 1, 2, 3, 4, 5].map((time) => row(time, time === 3 ? 90 : 50, 95, 96));
    const spans = [span(1, null, "cell", 0, 5, 99), span(2, 1, "step", 2.5, 3.5, 99)];
    const peak = findPeak(storeWith(rows, { spans }), "cuda:0");
    expect(peak).toEqual({ time: 3, bytes: 99, certainty: "exact" });
  });

  test("on a plateau it is where the memory rose, not in a later cell that is as high", () => {
    const rows = [1, 70, 100, 99.8, 100.2, 100.1].map((bytes, time) => row(time, bytes, 100, 100));
    const spans = [span(1, null, "cell", 0, 3, 100), span(2, null, "cell", 3, 5, 100.2)];
    const peak = findPeak(storeWith(rows, { spans }), "cuda:0");
    expect(peak).toMatchObject({ time: 2, bytes: 100.2 });
  });

  test("a span without a sample has its peak in its middle", () => {
    const store = storeWith([row(0, 1, 1, 1), row(9, 1, 1, 1)], { spans: [span(1, null, "step", 4, 6, 7)] });
    expect(findPeak(store, "cuda:0")).toEqual({ time: 5, bytes: 7, certainty: "exact" });
  });

  test("without spans it is the highest sample, and says so", () => {
    const peak = findPeak(storeWith([row(0, 1, 1, 1), row(1, 8, 9, 9), row(2, 3, 9, 9)]), "cuda:0");
    expect(peak).toEqual({ time: 1, bytes: 8, certainty: "sampled" });
  });

  test("a sample above every span's peak wins, but not by the rounding of float32", () => {
    const bytes = 7_505_111_223;
    const spans = [span(1, null, "cell", 0, 1, bytes)];
    const rounded = findPeak(storeWith([row(0, Math.fround(bytes) + 512, 1, 1)], { spans }), "cuda:0");
    expect(rounded).toMatchObject({ bytes, certainty: "exact" });
    const above = findPeak(storeWith([row(5, 2 * bytes, 1, 1)], { spans }), "cuda:0");
    expect(above).toMatchObject({ certainty: "sampled" });
  });
});

describe("composeScene", () => {
  test("on the host, series that would squeeze the process are drawn only on request", () => {
    const store = storeWith([0, 1].map((time) => [time, 9, 9, 9, 30, 300, 9000]));
    const host = { device: "cpu" };
    const plain = sceneOf(store, held(), host);
    const asked = sceneOf(store, held(), { ...host, asked: new Set(["reserved", "device_used"]) });
    expect(namesIn(plain).metrics).toEqual(["allocated"]);
    expect(plain.top).toBeLessThan(50);
    expect(namesIn(asked).metrics).toEqual(["device_used", "allocated", "reserved"]);
    expect(asked.top).toBeGreaterThan(9000);
    expect(namesIn(sceneOf(store)).metrics).toContain("reserved");
  });

  test("other use of the device is drawn only while it is not far above our own", () => {
    const near = sceneOf(storeWith([row(0, 50, 60, 100), row(1, 50, 60, 100)]));
    const far = sceneOf(storeWith([row(0, 50, 60, 700), row(1, 50, 60, 700)]));
    expect(near.lines.map(({ metric }) => metric)).toContain("device_used");
    expect(far.lines.map(({ metric }) => metric)).toEqual(["allocated", "reserved"]);
  });

  test("memory of child processes is a line on the host from 256 MiB on", () => {
    const series = [...SCHEMA.series, { device: "cpu", metric: "children", label: "child processes (PSS)" }];
    const schema = { ...SCHEMA, series };
    const sceneAt = (held: number) => {
      const rows: ReturnType<typeof level>[] = [0, 1].map((time) => [
        time,
        1,
        1,
        1,
        1 << 20,
        1 << 21,
        9,
        held,
      ]);
      return sceneOf(storeWith(rows, { schema }), undefined, { device: "cpu" });
    };
    const [little, much] = [2 ** 28 - 32, 2 ** 28].map((held) => sceneAt(held).lines);
    expect(little!.map(({ metric }) => metric)).not.toContain("children");
    expect(much!.at(-1)).toMatchObject({ metric: "children", look: "children" });
    expect(Math.max(...much!.at(-1)!.values)).toBe(2 ** 28);
  });

  test("capacity is drawn from sixty percent of it", () => {
    expect(sceneOf(storeWith([row(0, 10, 590, 590), row(1, 1, 590, 590)])).capacity).toBeNull();
    expect(sceneOf(storeWith([row(0, 10, 610, 610), row(1, 1, 610, 610)])).capacity).toBe(1000);
  });

  test("while running the axis grows in steps and never shrinks", () => {
    const store = storeWith([row(0, 10, 10, 10)]);
    const hold = held();
    const tops: number[] = [];
    for (let seq = 1; seq <= 200; seq++) {
      const value = 10 + seq + 20 * Math.sin(seq);
      store.apply(
        message("rows", seq, [row(seq, value, value, value)], { status: { ...STATUS, elapsed: seq } }),
      );
      tops.push(sceneOf(store, hold).top);
    }
    expect(tops).toEqual(tops.toSorted((a, b) => a - b));
    expect(new Set(tops).size).toBeLessThan(20);
    expect(tops.at(-1)).toBeGreaterThan(230);
  });

  test("a stopped run fills the width exactly", () => {
    const store = storeWith([row(0, 1, 1, 1), row(13.7, 1, 1, 1)], {
      status: { ...STATUS, state: "stopped", elapsed: 13.7 },
    });
    expect(sceneOf(store).range).toEqual([0, 13.7]);
  });

  test("the peak's label stays within the plot and above everything beneath it", () => {
    for (const at of [0, 1, 50, 99, 100]) {
      const rows = Array.from({ length: 101 }, (_, time) => row(time, time === at ? 80 : 20, 85, 90));
      const scene = sceneOf(storeWith(rows));
      const { box } = scene.peak!;
      const reserved = (scene.height - scene.lanesHeight) * (1 - 90 / scene.top);
      expect(box.left).toBeGreaterThanOrEqual(0);
      expect(box.left + box.width).toBeLessThanOrEqual(scene.width);
      expect(box.top).toBeGreaterThanOrEqual(0);
      expect(box.top + box.height).toBeLessThan(reserved);
    }
  });

  test("a run of no length has a chart", () => {
    const scene = sceneOf(storeWith([row(0, 5, 5, 5)]));
    expect(scene.range[1]).toBeGreaterThan(0);
    expect(() => toFigure(scene, THEME, 1, (text) => text.length)).not.toThrow();
  });

  test("a device without data has an empty chart", () => {
    const scene = sceneOf(storeWith([level(0, Number.NaN), level(1, Number.NaN)]));
    expect(scene.peak).toBeNull();
    expect(scene.top).toBeGreaterThan(0);
  });
});

function storeWithParts(rows: ReturnType<typeof level>[]): Store {
  const elapsed = rows.at(-1)![0];
  return storeWith(rows, { schema: PARTS_SCHEMA, status: { ...STATUS, state: "stopped", elapsed } });
}

describe("a stack", () => {
  const rows = [0, 1, 2, 3].map((time) => partRow(time, 50 + time));

  test("replaces the plain area, from the weights up to allocated memory", () => {
    const { bands, lines } = sceneOf(storeWithParts(rows));
    expect(bands.map(({ part, top }) => [part, top[3]])).toEqual([
      ["weights", 10],
      ["buffers", 11],
      ["optimizer", 31],
      ["gradients", 41],
      ["unattributed", 43],
      ["activations", 53],
    ]);
    expect(lines.map(({ metric }) => metric)).toEqual(["device_used", "allocated", "reserved"]);
  });

  test("a part of less than a pixel has no name in the legend", () => {
    const thin = [0, 1].map((time) => partRow(time, 50, { buffers: 0.1 }));
    const scene = sceneOf(storeWithParts(thin));
    expect(scene.bands.map(({ part }) => part)).toContain("buffers");
    expect(namesIn(scene).parts).toEqual([
      "weights",
      "optimizer",
      "gradients",
      "unattributed",
      "activations",
    ]);
  });

  test("is not drawn where nothing was found, where it was switched off, or where allocated was", () => {
    const nothing = { weights: 0, buffers: 0, gradients: 0, optimizer: 0 };
    expect(sceneOf(storeWithParts([partRow(0, 50, nothing), partRow(1, 50, nothing)])).bands).toEqual([]);
    expect(sceneOf(storeWith([row(0, 50, 60, 70)])).bands).toEqual([]);
    expect(sceneOf(storeWithParts(rows), held(), { parts: false }).bands).toEqual([]);
    expect(sceneOf(storeWithParts(rows), held(), { hidden: new Set(["allocated"]) }).bands).toEqual([]);
  });

  test("of very many rows shows parts of one instant, the highest of all among them", () => {
    // Gradients and activations are never there together: 10 of one, or 40 of the other.
    const many = Array.from({ length: 30_000 }, (_, time) =>
      partRow(time, time % 2 === 0 ? 43 : time === 17_001 ? 78 : 73, { gradients: time % 2 === 0 ? 10 : 0 }),
    );
    const { bands, lines, x } = sceneOf(storeWithParts(many));
    const top = (part: string) => bands.find((band) => band.part === part)!.top;
    const allocated = lines.find(({ metric }) => metric === "allocated")!.values;
    expect(Math.max(...allocated)).toBe(78);
    expect([...top("activations")]).toEqual([...allocated]);
    const pairs = x.map((_, index) => top("gradients")[index]! - top("optimizer")[index]!);
    expect([...pairs]).toEqual([...allocated].map((bytes) => (bytes === 43 ? 10 : 0)));
    expect(x.length * (lines.length + bands.length)).toBeLessThanOrEqual(POINT_BUDGET);
  });

  test("is painted from its top down, under its line, and comes down at a gap", () => {
    const gap = [2, ...PARTS_SCHEMA.series.map(() => Number.NaN)] as ReturnType<typeof level>;
    const store = storeWithParts([partRow(0, 50), partRow(1, 51), gap, partRow(3, 53)]);
    const { data } = toFigure(sceneOf(store), THEME, 1, (text) => text.length);
    const traces = data as { uid: string; x: Float64Array; y: Float64Array; fillcolor?: string }[];
    const names = ["activations", "unattributed", "gradients", "optimizer", "buffers", "weights"];
    expect(traces.map(({ uid }) => uid).slice(0, 9)).toEqual([
      ...["device_used", ...names.map((name) => `${name}-area`), "allocated", "reserved"],
    ]);
    for (const { uid, x, y, fillcolor } of traces.slice(1, 7)) {
      expect([...x], uid).toEqual([0, 0, 1, 1, 3, 3, 3]);
      expect([...y].map((value) => value > 0)).toEqual([false, true, true, false, false, true, false]);
      expect(fillcolor).toMatch(/^rgb\(\d+,\d+,\d+\)$/);
    }
  });

  test("draws only the ends of level stretches", () => {
    const level = Array.from({ length: 500 }, (_, time) => partRow(time, time === 250 ? 60 : 50));
    const { data } = toFigure(sceneOf(storeWithParts(level)), THEME, 1, (text) => text.length);
    const drawn = (uid: string) => [
      ...(data as { uid: string; x: Float64Array }[]).find((t) => t.uid === uid)!.x,
    ];
    expect(drawn("weights-area")).toEqual([0, 499]);
    expect(drawn("allocated")).toEqual([0, 249, 250, 251, 499]);
  });

  test("reads each part at the instant under the pointer, from the uppermost down", () => {
    const store = storeWithParts(
      rows.map(([time, allocated, ...rest]) => [time, 1e9 * allocated!, ...rest.map((value) => 1e9 * value)]),
    );
    const { rows: read } = readTime(store, "cuda:0", sceneOf(store), 698)!;
    expect(read.map(([name, value]) => `${name} ${value}`)).toEqual([
      "reserved 74.5 GiB",
      "allocated 49.4 GiB",
      "activations 9.31 GiB",
      "not attributed 1.86 GiB",
      "gradients 9.31 GiB",
      "optimizer 18.6 GiB",
      "buffers 953.7 MiB",
      "weights 9.31 GiB",
      "device_used 83.8 GiB",
    ]);
    expect(read.filter(([, , color]) => color !== undefined)).toHaveLength(6);
  });

  test("under one pixel of very many rows the parts are those of the highest", () => {
    const many = Array.from({ length: 30_000 }, (_, time) =>
      partRow(time, time % 2 === 0 ? 43 : 73, { gradients: time % 2 === 0 ? 10 : 0 }),
    );
    const store = storeWithParts(many);
    const { rows: read } = readTime(store, "cuda:0", sceneOf(store), 350)!;
    const names = read.map(([name]) => name);
    expect(names).toContain("activations");
    expect(names).not.toContain("gradients");
  });
});

describe("placeLabel", () => {
  test("a label never straddles a line", () => {
    for (let line = 20; line < 90; line++) {
      const plot = { width: 400, lines: [line], skyline: () => 95 };
      const box = placeLabel({ x: 200, y: 97 }, { width: 100, height: 14 }, plot)!;
      expect(line < box.top || line > box.top + box.height).toBe(true);
    }
  });

  test("has no place without room", () => {
    const plot = { width: 400, lines: [], skyline: () => 12 };
    expect(placeLabel({ x: 200, y: 97 }, { width: 100, height: 14 }, plot)).toBeNull();
  });
});

describe("toFigure", () => {
  test("no label reaches Plotly as anything but text", () => {
    const spans = HOSTILE.map((label, index) => ({
      ...span(index + 1, null, "cell", index * 25, index * 25 + 24),
      label,
    }));
    const rows = Array.from({ length: 101 }, (_, time) => row(time, 1, 2, 3));
    const figure = toFigure(sceneOf(storeWith(rows, { spans })), THEME, 1, (text) => text.length);
    const texts = JSON.stringify(figure).match(/"[^"]*alert[^"]*"/g);
    expect(texts).toHaveLength(2);
    expect(JSON.stringify(figure)).not.toMatch(/<|\$|>/);
  });

  test("areas come down to zero at a gap, lines break", () => {
    const rows = [row(0, 5, 6, 7), row(1, 5, 6, 7), level(2, Number.NaN), row(3, 5, 6, 7)];
    const { data } = toFigure(sceneOf(storeWith(rows)), THEME, 1, (text) => text.length);
    const traces = new Map(
      data.map((trace) => [(trace as { uid: string }).uid, trace as { x: Float64Array; y: Float64Array }]),
    );
    const area = traces.get("allocated-area")!;
    expect([...area.x]).toEqual([0, 0, 1, 1, 3, 3, 3]);
    expect([...area.y].map((value) => value > 0)).toEqual([false, true, true, false, false, true, false]);
    expect(Number.isNaN(traces.get("allocated")!.y[2])).toBe(true);
  });
});

describe("hover", () => {
  test("a gap reads how long nothing was sampled", () => {
    const store = storeWith([row(0, 5, 6, 7), level(2, Number.NaN), row(4.7, 5, 6, 7)], {
      status: { ...STATUS, state: "stopped", elapsed: 4.7 },
    });
    const scene = sceneOf(store);
    expect(readTime(store, "cuda:0", scene, 350)).toEqual({ title: "no samples for 4.7 s", rows: [] });
  });

  test("a spike under one pixel reads as its whole range", () => {
    const rows = Array.from({ length: 100_001 }, (_, i) => row(i / 1000, i === 50_000 ? 900 : 100, 950, 960));
    const store = storeWith(rows, { status: { ...STATUS, state: "stopped", elapsed: 100 } });
    const values = readTime(store, "cuda:0", sceneOf(store), 350)!.rows.map(([, value]) => value);
    expect(values.some((value) => value.includes(" – "))).toBe(true);
  });

  test("a short span can be hit, and the worst before the group under it", () => {
    const steps = Array.from({ length: 2000 }, (_, i) =>
      stepRow({ number: i + 1, start: i / 20, stop: (i + 1) / 20, peak: i === 700 ? 9 : 2 }),
    );
    const store = storeWith([row(0, 1, 1, 1), row(100, 1, 1, 1)], {
      status: { ...STATUS, state: "stopped", elapsed: 100 },
    });
    store.steps = tableOf(steps);
    const scene = sceneOf(store);
    expect(barAt(scene, 245, 5)).toMatchObject({ worst: true, peak: 9 });
    expect(barAt(scene, 300, 5)).toMatchObject({ worst: false });
    expect(barAt(scene, 300, LANE_PIXELS + 1)).toBeNull();
  });
});

describe("Plotly's texts in the plot", () => {
  const PAGES = [
    { ...THEME, text: "rgb(33,33,33)", muted: "rgb(97,97,97)", surface: "rgb(255,255,255)" },
    { ...THEME, text: "rgb(224,224,224)", muted: "rgb(189,189,189)", surface: "rgb(17,17,17)" },
  ];

  test.each(PAGES)("the peak's label reads well on $surface, in the text's own ink", (theme) => {
    const scene = sceneOf(storeWith([row(0, 50, 60, 70), row(1, 90, 95, 96), row(2, 50, 60, 70)]));
    const { annotations } = toFigure(scene, theme, 0, (text) => 7 * text.length).layout as {
      annotations: { text: string; bgcolor?: string; font: { color: string } }[];
    };
    expect(scene.peak).not.toBeNull();
    expect(annotations.at(-1)!.font.color).toBe(theme.text);
    for (const { font, bgcolor } of annotations)
      expect(contrast(font.color, bgcolor ?? theme.surface)).toBeGreaterThanOrEqual(4.5);
  });
});
