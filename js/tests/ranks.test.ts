// @vitest-environment jsdom
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { composeScene } from "../src/core/compose.ts";
import { decode } from "../src/core/protocol.ts";
import { decodeRanks, merged, type Ranks, SILENT_CELL, STRIP_COLUMNS } from "../src/core/ranks.ts";
import { defaultSettings, type Settings } from "../src/core/settings.ts";
import { Store } from "../src/core/store.ts";
import { View } from "../src/core/view.ts";
import { fromFrame, toFrame } from "../src/hosts/panel/remembered.ts";
import { frame, random, STATUS } from "./frames.ts";
import { paint, preparePage } from "./page.ts";

const plotly = vi.hoisted(() => ({ draw: vi.fn(async () => {}), purge: vi.fn() }));
vi.mock("../src/core/plotly.ts", () => plotly);

const HOSTILE = "<img src=x onerror=alert(1)>";
const GIB = 2 ** 30;

/** Rank, restarts, host, device, certainty, peak, weights, activations, step, phase, silent, flag. */
const WORST = [417, 0, HOSTILE, 0, 0, 7 * GIB, GIB, 3 * GIB, 312, "backward", 0, "outlier"];
const OTHER = [12, 1, "node1", 0, 2, 5 * GIB, GIB, null, 311, "forward", 38, "silent"];

const TOLD = {
  ...{ world: 1024, nodes: 128, reporting: 1021, engine: "torchrun" },
  ...{ lowest: 4 * GIB, median: 5 * GIB, lowest_rank: 3 },
  devices: [["NVIDIA H200", 10 * GIB]],
  table: [WORST, OTHER],
  phases: [["backward", 4 * GIB, 5 * GIB, 7 * GIB, 417]],
  strip: { first: [0, 512], at: [0, 1] },
};
const CELLS = Uint8Array.of(10, 20, 30, SILENT_CELL);

function ranksWith(more: object, cells: Uint8Array = CELLS): Ranks | null {
  return decodeRanks({ ...TOLD, ...more }, cells);
}

describe("all ranks, read", () => {
  test("as they come", () => {
    const ranks = ranksWith({})!;
    expect(ranks).toMatchObject({ world: 1024, nodes: 128, reporting: 1021, median: 5 * GIB, isWhole: true });
    expect(ranks.table[0]).toMatchObject({
      rank: 417,
      device: "NVIDIA H200",
      total: 10 * GIB,
      flag: "outlier",
    });
    expect(ranks.table[1]).toMatchObject({ attempt: 1, certainty: "sampled", activations: Number.NaN });
    expect(ranks.strip).toEqual({ first: [0, 512], at: [0, 1], cells: CELLS });
  });

  test.each([
    ["nothing", null],
    ["no world", { ...TOLD, world: undefined }],
    ["a world of no size", { ...TOLD, world: 0 }],
    ["a world that is no number of ranks", { ...TOLD, world: 1e300 }],
    ["no strip", { ...TOLD, strip: undefined }],
    ["a strip without times", { ...TOLD, strip: { first: [0] } }],
    ["times that fall", { ...TOLD, strip: { first: [0, 512], at: [1, 0] } }],
    ["times that are none", { ...TOLD, strip: { first: [0, 512], at: [0, "1"] } }],
    ["rows of ranks that are not", { ...TOLD, strip: { first: [0, 1024], at: [0, 1] } }],
    ["too few cells", { ...TOLD, strip: { first: [0, 512], at: [0, 1, 2] } }],
    ["too many columns", { ...TOLD, strip: { first: [0], at: Array.from({ length: 241 }, (_, at) => at) } }],
    ["too many rows", { ...TOLD, strip: { first: Array.from({ length: 65 }, (_, at) => at), at: [] } }],
  ])("%s is not read", (_, told) => {
    expect(decodeRanks(told, CELLS)).toBeNull();
  });

  test("of lists no more than there is room for, and no entry that is malformed", () => {
    const table = [null, [], WORST.slice(1), ["1", ...WORST.slice(1)], ...new Array(40).fill(OTHER)];
    const phases = [null, ["backward"], [1, 2, 3, 4, 5], ...new Array(40).fill(TOLD.phases[0])];
    const ranks = ranksWith({ table, phases })!;
    expect(ranks.table.length).toBeLessThanOrEqual(16);
    expect(ranks.table.every(({ rank }) => rank === 12)).toBe(true);
    expect(ranks.phases.length).toBeLessThanOrEqual(8);
    expect(ranks.phases.every(({ kind }) => kind === "backward")).toBe(true);
  });

  test("texts have at most forty letters, and figures are plausible", () => {
    const row = [1, -1, "x".repeat(500), 7, 9, 1e300, "1", null, -5, {}, -1, []];
    const [read] = ranksWith({ table: [row] })!.table;
    expect(read).toMatchObject({
      attempt: 0,
      device: "",
      certainty: "sampled",
      step: 0,
      phase: "",
      silent: 0,
    });
    expect(read!.host).toHaveLength(40);
    expect([read!.peak, read!.weights, read!.flag]).toEqual([Number.NaN, Number.NaN, ""]);
  });

  test("whatever is sent, nothing is thrown", () => {
    const draw = random(7);
    const values = [null, -1, 0, 1.5, 1e9, "x", [], {}, [[1]], Number.NaN, true];
    const any = () => values[Math.floor(draw() * values.length)];
    for (let turn = 0; turn < 500; turn++) {
      const told = Object.fromEntries(
        Object.entries(TOLD).map(([name, old]) => [name, draw() < 0.3 ? any() : old]),
      );
      expect(() => decodeRanks(told, CELLS)).not.toThrow();
    }
  });

  test("a message with ranks that cannot be read is read without", () => {
    const { content, buffers } = frame("rows", 1, [], { ranks: { world: "many" } });
    expect(decode(content, buffers)).toMatchObject({ kind: "rows", ranks: null });
  });
});

describe("the strip", () => {
  const news = (at: number[], cells: number[]) => ranksWith({ strip: { at } }, Uint8Array.from(cells))!;

  test("the newest columns replace the last ones", () => {
    const { strip } = merged(ranksWith({}), news([1, 2], [40, 50, 60, 70]), false);
    expect(strip.at).toEqual([0, 1, 2]);
    expect([...strip.cells]).toEqual([10, 20, 40, 50, 60, 70]);
    expect(strip.first).toEqual([0, 512]);
  });

  test("columns of other rows are left out until a whole strip comes", () => {
    const { strip, table } = merged(ranksWith({ table: [] }), news([2], [1, 2, 3]), false);
    expect([...strip.cells]).toEqual([...CELLS]);
    expect(table).toHaveLength(2);
  });

  test("a page without a strip waits for a whole one", () => {
    expect(merged(null, news([2], [1, 2]), false).strip.at).toEqual([]);
  });

  test("an outline does not take the place of finer columns", () => {
    const outline = ranksWith({ strip: { first: [0, 512], at: [0, 3] } }, Uint8Array.of(99, 99, 7, 8))!;
    const { strip } = merged(ranksWith({}), outline, true);
    expect(strip.at).toEqual([0, 1, 3]);
    expect([...strip.cells]).toEqual([...CELLS, 7, 8]);
    expect(merged(null, outline, true).strip.at).toEqual([0, 3]);
  });

  test("it does not grow for ever", () => {
    let ranks = ranksWith({})!;
    for (let second = 2; second < 2000; second++)
      ranks = merged(ranks, news([second], [second % 200, 0]), false);
    expect(ranks.strip.at.length).toBeLessThanOrEqual(STRIP_COLUMNS);
    expect(ranks.strip.at[0]).toBe(0);
    expect(ranks.strip.cells).toHaveLength(2 * ranks.strip.at.length);
  });
});

const SCHEMA = {
  label: "fine-tune",
  started_at: 0,
  devices: [
    { key: "ranks", name: "1,024 ranks on 128 nodes", total: 10 * GIB },
    { key: "rank:417", name: `rank 417 · ${HOSTILE}`, total: 10 * GIB },
  ],
  series: [
    ...["allocated", "median", "lowest"].map((metric) => ({ device: "ranks", metric, label: metric })),
    { device: "rank:417", metric: "allocated", label: "allocated" },
  ],
};

function storeOf(more: object = {}, metrics: string[] = []): Store {
  const store = new Store(Date.now);
  const singly = metrics.map((metric) => ({ device: "ranks", metric, label: metric }));
  const schema = { ...SCHEMA, series: [...SCHEMA.series, ...singly] };
  const row = (at: number): [number, ...number[]] => {
    const own = metrics.map(() => 5 * GIB);
    return [at, 7 * GIB, 5 * GIB, 4 * GIB, 7 * GIB, ...own];
  };
  const { content, buffers } = frame("snapshot", 1, [row(0), row(1)], {
    ...{ schema, status: STATUS, ranks: TOLD },
    ...more,
  });
  store.apply(decode(content, [...buffers, CELLS.buffer]));
  return store;
}

function sceneOf(store: Store, chosen: Partial<Settings> = {}, width = 800) {
  const settings = { ...defaultSettings(), device: "ranks", ...chosen };
  const input = { store, settings, now: 1, width, height: 200, textWidth: (text: string) => 6 * text.length };
  return composeScene(input, { key: "", top: 0, end: 0, lanes: 0 });
}

describe("the chart of all ranks", () => {
  test("of many, a band with the median and the highest", () => {
    const { lines } = sceneOf(storeOf());
    expect(lines.map(({ metric, look }) => [metric, look])).toEqual([
      ["lowest", "lowest"],
      ["median", "median"],
      ["allocated", "highest"],
    ]);
  });

  test("of a few, a line each", () => {
    const { lines } = sceneOf(storeOf({}, ["rank0", "rank1"]));
    expect(lines.map(({ metric }) => metric)).toEqual(["rank0", "rank1"]);
  });

  test("a rank of its own is drawn as any device", () => {
    const { lines } = sceneOf(storeOf(), { device: "rank:417" });
    expect(lines.map(({ look }) => look)).toEqual(["allocated"]);
  });

  test.each([
    [800, "worst: rank 417, 7.00 GiB exact, backward"],
    [230, "worst: rank 417, 7.00 GiB exact"],
    [120, "rank 417"],
  ])("in %i pixels the peak is called by the worst rank: %s", (width, text) => {
    expect(sceneOf(storeOf(), {}, width).peak!.text).toBe(text);
  });
});

describe("the view of all ranks", () => {
  const open = (store: Store, chosen: Partial<Settings> = {}) => {
    const settings = { ...defaultSettings(), ...chosen };
    return new View(document.body, store, { signal: new AbortController().signal, settings }).element;
  };
  const texts = (element: Element, query: string) =>
    [...element.querySelectorAll(query)].map(({ textContent }) => textContent);

  beforeEach(() => {
    vi.useFakeTimers({ toFake: ["setTimeout", "setInterval", "clearTimeout", "clearInterval", "Date"] });
    preparePage();
  });
  afterEach(() => {
    vi.unstubAllGlobals();
    vi.useRealTimers();
  });

  test("comes first, and each rank is called by its number", () => {
    const element = open(storeOf());
    paint();
    expect(texts(element, ".hfmem-tab-label")).toEqual(["ranks", "rank 417"]);
    expect(element.querySelector("[aria-selected=true]")!.textContent).toBe("ranks");
    expect(element.querySelectorAll(".hfmem-tab")[1]!.getAttribute("title")).toContain(HOSTILE);
  });

  test("has the table and the phases beneath the chart", () => {
    const element = open(storeOf());
    paint();
    expect(texts(element, ".hfmem-ranks-table tbody tr:first-child td:first-child")).toEqual([
      "417",
      "backward",
    ]);
    expect(texts(element, "td[data-hfmem-column=note]")).toEqual(["outlier", "silent for 38 s"]);
    expect(element.querySelector(".hfmem-peak")!.textContent).toBe("peak 7.00 GiB exact (rank 417)");
  });

  test("hostile names are text", () => {
    const element = open(storeOf());
    paint();
    expect(element.querySelector("img")).toBeNull();
    expect(texts(element, "td[data-hfmem-column=node]")).toEqual([HOSTILE, "node1"]);
  });

  test("nothing of it is on the tab of one rank, or of any other run", () => {
    const element = open(storeOf(), { picked: "rank:417" });
    paint();
    expect(element.querySelector<HTMLElement>(".hfmem-ranks")!.hidden).toBe(true);
    expect(open(storeOf({ ranks: undefined })).querySelector("table.hfmem-ranks-table")).toBeNull();
  });

  test("room is kept for sixteen ranks before they are known", () => {
    const element = open(storeOf());
    paint();
    const part = element.querySelector<HTMLElement>(".hfmem-ranks-part")!;
    expect(part.style.getPropertyValue("--hfmem-rows")).toBe("17");
  });

  test("the panel remembers all of it across a reload", () => {
    const store = storeOf();
    const again = new Store(Date.now);
    again.apply(fromFrame(toFrame(store)!));
    expect(again.ranks).toEqual(store.ranks);
  });
});
