import { describe, expect, test } from "vitest";
import { Store } from "../src/core/store.ts";
import { cellsOf, changeOn, worstOn } from "../src/hosts/panel/cells.ts";
import { fullnessOf } from "../src/hosts/panel/fullness.ts";
import { openPath } from "../src/hosts/panel/path.ts";
import { fromFrame, loadMemory, saveMemory, toFrame } from "../src/hosts/panel/remembered.ts";
import { Runs } from "../src/hosts/panel/runs.ts";
import { level, message, PARTS_SCHEMA, partRow, SCHEMA, STATUS, span } from "./frames.ts";
import { custom } from "./signals.ts";

const STOPPED = { ...STATUS, state: "stopped" };

function runs(): Runs {
  return new Runs(() => {});
}

function storeOf(...parameters: Parameters<typeof message>): Store {
  const store = new Store(() => 0);
  store.apply(message(...parameters));
  return store;
}

/** A store with one reading of device in use for each device, of capacities 1000 and unknown. */
function storeAt(allocated: number, used: number, schema = SCHEMA, status: object = STATUS): Store {
  const values = schema.series.map(({ metric }) => (metric === "device_used" ? used : allocated));
  return storeOf("snapshot", 1, [[0, ...values]], { schema, status });
}

describe("the kernel's messages", () => {
  test("goes to the store of its run", () => {
    const heard = runs();
    heard.receive(custom("snapshot", 1, [level(0, 1)], { run: "a" }));
    heard.receive(custom("snapshot", 1, [level(0, 1), level(1, 2)], { run: "b" }));
    heard.receive(custom("rows", 2, [level(2, 3)], { run: "b" }));
    expect(heard.current!.run).toBe("b");
    expect(heard.current!.timeline.length).toBe(3);
  });

  test("before the first snapshot is held and not lost", () => {
    const heard = runs();
    heard.receive(custom("rows", 7, [level(7, 1)]));
    expect(heard.current!.schema).toBeNull();
    heard.receive(custom("snapshot", 6, [level(5, 1), level(6, 1)]));
    expect([...heard.current!.timeline.time.slice(0, 3)]).toEqual([5, 6, 7]);
  });

  test("are ignored if they are not about a run", () => {
    const heard = runs();
    const { content } = custom("snapshot", 1, []);
    const data = (inner: object) => ({ header: { msg_type: "comm_msg" }, content: { data: inner } });
    heard.receive({ header: { msg_type: "stream" }, content });
    heard.receive({ header: { msg_type: "comm_msg" }, content: null });
    heard.receive(data({ method: "update", state: {} }));
    heard.receive(data({ method: "custom", content: { kind: "snapshot", run: 7 } }));
    heard.receive(data({ method: "custom", content: { kind: "snapshot" } }));
    heard.receive(data({ method: "custom", content: { kind: "rows", run: "a", seq: 1, rows: 5 } }));
    expect(heard.isEmpty).toBe(true);
  });

  test("of an inner run shows while it goes on, then the outer one again, also when both are over", () => {
    const heard = runs();
    heard.receive(custom("snapshot", 1, [level(0, 1)], { run: "outer" }));
    heard.receive(custom("snapshot", 1, [level(0, 1)], { run: "inner" }));
    expect(heard.current!.run).toBe("inner");
    heard.receive(custom("snapshot", 2, [level(0, 1)], { run: "inner", status: STOPPED }));
    expect(heard.current!.run).toBe("outer");
    heard.receive(custom("snapshot", 2, [level(0, 1)], { run: "outer", status: STOPPED }));
    expect(heard.current!.run).toBe("outer");
    const reloaded = new Runs(() => {}, heard.remember());
    expect(reloaded.current!.run).toBe("outer");
  });

  test("of ranks continue to be shown after the last one, and are not a cell", () => {
    const heard = runs();
    const cell = { schema: SCHEMA, spans: [span(1, null, "cell", 0, 5)] };
    const told = { world: 2, nodes: 1, reporting: 2, engine: "", lowest: 1, median: 2, lowest_rank: 0 };
    const strip = { first: [0], at: [] };
    const ranks = { ranks: { ...told, devices: [], table: [], phases: [], strip } };
    heard.receive(custom("snapshot", 1, [level(0, 1)], { run: "cell", ...cell }));
    heard.receive(custom("snapshot", 1, [level(0, 1)], { run: "ranks", ...cell, ...ranks }));
    for (const run of ["ranks", "cell", "ranks"]) {
      const more = run === "ranks" ? ranks : {};
      heard.receive(custom("snapshot", 2, [level(1, 1)], { run, ...cell, ...more, status: STOPPED }));
    }
    expect(heard.current!.run).toBe("ranks");
    expect(heard.cells).toHaveLength(1);
  });

  test("keeps the last eight cells, and few of the runs that they were in", () => {
    const heard = runs();
    for (let cell = 0; cell < 30; cell++) {
      const spans = [{ ...span(1, null, "cell", 0, 1), label: `cell ${cell}` }];
      const schema = { ...SCHEMA, started_at: cell };
      const told = { run: String(cell), schema, spans, status: STOPPED };
      heard.receive(custom("snapshot", 1, [level(0, 1)], told));
    }
    expect(heard.cells.map(({ label }) => label)).toEqual(
      [29, 28, 27, 26, 25, 24, 23, 22].map((n) => `cell ${n}`),
    );
    expect(heard.remember().frames.length).toBe(4);
  });

  test("asks for the panel unless it says otherwise", () => {
    const [silent, apart, over] = [runs(), runs(), runs()];
    silent.receive(custom("snapshot", 1, []));
    apart.receive(custom("snapshot", 1, [], { schema: { ...SCHEMA, panel: false } }));
    over.receive(custom("snapshot", 1, [], { status: STOPPED }));
    expect([silent, apart, over].map(({ wantsPanel }) => wantsPanel)).toEqual([true, false, false]);
  });

  test("when the kernel is gone is over, until another run begins", () => {
    const heard = runs();
    heard.receive(custom("snapshot", 1, [level(0, 1)]));
    heard.disconnect();
    expect(heard.current!.disconnected).toBe(true);
    heard.receive(custom("snapshot", 2, [level(0, 1)], { status: STOPPED }));
    expect(heard.isLost).toBe(true);
    heard.receive(custom("snapshot", 1, [level(0, 1)], { run: "next" }));
    expect(heard.isLost).toBe(false);
  });

  test("are forgotten on demand, except running ones", () => {
    const heard = runs();
    heard.receive(custom("snapshot", 1, [], { run: "over", status: STOPPED }));
    heard.receive(custom("snapshot", 1, [], { run: "live" }));
    heard.clear();
    expect(heard.current!.run).toBe("live");
    heard.disconnect();
    heard.clear();
    expect(heard.isEmpty).toBe(true);
  });
});

describe("the data after a reload", () => {
  const rows = Array.from({ length: 5000 }, (_, second) => level(second, second % 7));
  const open = { ...span(2, 1, "step", 4000, 0), stop: null };
  const before = storeOf("snapshot", 9, rows, { spans: [span(1, null, "cell", 0, 4000), open] });

  test("is a coarse history with the same ends, extremes, spans and status", () => {
    const store = new Store(() => 0);
    store.apply(fromFrame(toFrame(before)!));
    expect(store.timeline.length).toBeLessThan(1000);
    expect(store.timeline.time[0]).toBe(0);
    expect(store.timeline.last).toBeCloseTo(4999, -2);
    const values = [...store.timeline.columns[0]!.values.slice(0, store.timeline.length)];
    expect([Math.min(...values), Math.max(...values)]).toEqual([0, 6]);
    expect([...store.spans.values()].map(({ id }) => id)).toEqual([1, 2]);
    expect(store.status).toEqual(before.status);
  });

  test("keeps the parts of an instant together", () => {
    const many = Array.from({ length: 5000 }, (_, time) =>
      partRow(time, time % 2 === 0 ? 43 : 73, { gradients: time % 2 === 0 ? 10 : 0 }),
    );
    const store = new Store(() => 0);
    store.apply(fromFrame(toFrame(storeOf("snapshot", 9, many, { schema: PARTS_SCHEMA }))!));
    const read = (metric: string) => [
      ...store.timeline.columns[store.columnOf("cuda:0", metric)]!.values.slice(0, store.timeline.length),
    ];
    expect(read("gradients")).toEqual(read("allocated").map((bytes) => (bytes === 43 ? 10 : 0)));
  });

  test("goes on with the next rows and heals with the next snapshot", () => {
    const heard = new Runs(() => {}, { frames: [toFrame(before)!], past: [], isLost: false });
    heard.receive(custom("rows", 40, [level(6000, 1)]));
    expect(heard.current!.timeline.last).toBe(6000);
    heard.receive(custom("snapshot", 41, [level(0, 1), level(5500, 1), level(6000, 1)]));
    expect(heard.current!.timeline.length).toBe(3);
  });

  test("fits a tab's storage, a few kernels at most", () => {
    const memory = new Map(
      Array.from({ length: 20 }, (_, kernel) => [String(kernel), { frames: [], past: [], isLost: false }]),
    );
    const storage = new FakeStorage();
    saveMemory(storage, memory);
    expect([...loadMemory(storage).keys()].at(-1)).toBe("19");
    expect(loadMemory(storage).size).toBe(8);
  });

  test("is nothing where the storage is full or holds something else", () => {
    const storage = new FakeStorage();
    storage.setItem = () => {
      throw new DOMException("full", "QuotaExceededError");
    };
    expect(() => saveMemory(storage, new Map())).not.toThrow();
    for (const text of ["{", "7", '[["a"]]', '{"a": 1}']) {
      storage.getItem = () => text;
      const memory = loadMemory(storage);
      expect(() => new Runs(() => {}, memory.get("a"))).not.toThrow();
    }
    expect(fromFrame({ content: { kind: "snapshot" }, buffers: ["not base64 !"], lostAt: null })).toBeNull();
  });
});

describe("the last cells", () => {
  test("are the outermost cells and blocks of a run", () => {
    const spans = [
      span(1, null, "cell", 0, 2),
      span(2, 1, "block", 0, 1),
      span(3, null, "train", 1, 2),
      span(4, null, "block", 2, 3),
    ];
    const cells = cellsOf(storeOf("snapshot", 1, [], { spans }));
    expect(cells.map(({ label, duration }) => [label, duration])).toEqual([
      ["cell 1", 2],
      ["block 4", 1],
    ]);
  });

  test("that are open have the peak of the samples since, and have left nothing behind yet", () => {
    const devices = { "cuda:0": { before: 5, after: null, peak: 5, certainty: "sampled" } };
    const spans = [{ ...span(1, null, "cell", 1, 0), stop: null, devices }];
    const store = storeOf("snapshot", 1, [level(0, 99), level(1, 5), level(2, 40), level(3, 8)], { spans });
    const [cell] = cellsOf(store);
    expect(cell!.open).toBe(true);
    expect(cell!.devices["cuda:0"]).toEqual({ before: 5, after: null, peak: 40, certainty: "sampled" });
    expect(changeOn(cell!, "cuda:0")).toBeNaN();
  });

  test("that are open have the exact peak of a step within them", () => {
    const open = { ...span(1, null, "cell", 1, 0), stop: null, devices: {} };
    const rows = [level(0, 1), level(1, 5), level(2, 40)];
    const store = storeOf("snapshot", 1, rows, { spans: [open, span(2, 1, "evaluate", 1, 2, 70)] });
    expect(cellsOf(store)[0]!.devices["cuda:0"]).toMatchObject({ peak: 70, certainty: "exact" });
  });

  test("have a worst one where there are two or more to compare", () => {
    const spans = [
      span(1, null, "cell", 0, 1, 10),
      span(2, null, "cell", 1, 2, 30),
      span(3, null, "cell", 2, 3, 20),
    ];
    const cells = cellsOf(storeOf("snapshot", 1, [], { spans }));
    expect(worstOn(cells, "cuda:0")!.label).toBe("cell 2");
    expect(worstOn(cells.slice(0, 1), "cuda:0")).toBeNull();
    expect(worstOn(cells, "cuda:1")).toBeNull();
  });

  test.each([
    ["the one that rose to it, not one that stayed there", [0, 1000], [998, 1003], [999, 1004], "cell 1"],
    ["the one that rose most among those that are as high", [0, 600], [600, 1000], [995, 1001], "cell 2"],
    ["a later one that is clearly higher", [0, 1000], [998, 1003], [1003, 1050], "cell 3"],
    ["none, where all stayed as high as an earlier one", [999, 1000], [998, 1003], [1001, 1004], undefined],
  ])("of the highest peak: %s", (_name, first, second, third, label) => {
    const spans = [first, second, third].map(([before, peak], at) => ({
      ...span(at + 1, null, "cell", at, at + 1),
      devices: { "cuda:0": { before: before!, after: before!, peak: peak!, certainty: "sampled" as const } },
    }));
    expect(worstOn(cellsOf(storeOf("snapshot", 1, [], { spans })), "cuda:0")?.label).toBe(label);
  });
});

describe("where a run is", () => {
  test("is the kernel's text", () => {
    const status = { ...STATUS, path: ["fine-tune", "train", "step 17 of 100"] };
    expect(openPath(storeOf("snapshot", 1, [], { status }))).toEqual(status.path);
  });

  test("is the open spans if the kernel sends no text", () => {
    const open = { ...span(2, 1, "epoch", 0, 0), stop: null };
    const spans = [{ ...span(1, null, "cell", 0, 0), stop: null }, open, span(3, 2, "evaluate", 0, 1)];
    expect(openPath(storeOf("snapshot", 1, [], { spans }))).toEqual(["cell 1", "epoch 2"]);
  });

  test("is nowhere when it has ended", () => {
    const status = { ...STOPPED, path: ["left over"] };
    expect(openPath(storeOf("snapshot", 1, [], { status }))).toEqual([]);
  });
});

describe("the status bar's text", () => {
  const GIB = 2 ** 30;
  const device = (key: string, total: number | null) => ({ key, name: `the ${key}`, total });
  const schemaOf = (...devices: ReturnType<typeof device>[]) => ({
    ...SCHEMA,
    devices,
    series: devices.flatMap(({ key }) =>
      ["allocated", "device_used"].map((metric) => ({
        key: `${key}/${metric}`,
        device: key,
        metric,
        label: metric,
      })),
    ),
  });

  test("tells allocated and capacity in one unit", () => {
    const store = storeAt(3.75 * GIB, 20 * GIB, schemaOf(device("cuda:0", 140.4 * GIB)));
    const fullness = fullnessOf(store)!;
    expect(fullness.text).toBe("3.75 / 140.4 GiB");
    expect(fullness.level).toBe("");
    expect(fullness.title).toBe("3.75 GiB allocated on cuda:0 (the cuda:0), 14 % of the device in use");
  });

  test("shows the device in use if other processes filled it", () => {
    const schema = schemaOf(device("cuda:0", 140.4 * GIB));
    const store = storeAt(Number.NaN, 20 * GIB, schema, { ...STATUS, lead: "by 4 child processes" });
    const fullness = fullnessOf(store)!;
    expect(fullness.text).toBe("20.0 / 140.4 GiB");
    expect(fullness.title).toBe("20.0 GiB in use on cuda:0 (the cuda:0), 14 % of the device in use");
  });

  test("has two units where they differ, and one figure where the capacity is unknown", () => {
    expect(fullnessOf(storeAt(2 ** 20, 0, schemaOf(device("cpu", 16 * GIB))))!.text).toBe(
      "1.00 MiB / 16.0 GiB",
    );
    expect(fullnessOf(storeAt(2 ** 20, 0, schemaOf(device("cpu", null))))!.text).toBe("1.00 MiB");
  });

  test.each([
    [0.849, "", ""],
    [0.85, "high", "filling up"],
    [0.949, "high", "filling up"],
    [0.951, "critical", "almost full"],
  ])("at %d of the device in use is %j, in words %j", (share, level, words) => {
    const store = storeAt(10 * GIB, share * 64 * GIB, schemaOf(device("cuda:0", 64 * GIB)));
    const { level: found, text, title } = fullnessOf(store)!;
    expect(found).toBe(level);
    expect([text, title].every((each) => each.endsWith(words))).toBe(true);
  });

  test("is of this run, and of all that is in use where that is nearly everything", () => {
    const schema = schemaOf(device("cuda:0", 100 * GIB), device("cpu", 10 * GIB));
    const calm = storeOf("snapshot", 1, [[0, 4 * GIB, 5 * GIB, 0.1 * GIB, 3 * GIB]], { schema });
    const full = storeOf("snapshot", 1, [[0, 4 * GIB, 5 * GIB, 0.1 * GIB, 9.2 * GIB]], { schema });
    expect(fullnessOf(calm)!.text).toBe("4.00 / 100.0 GiB");
    expect(fullnessOf(full)!.text).toBe("cpu 9.20 / 10.0 GiB · filling up");
  });

  test("is nothing before the first sample", () => {
    expect(fullnessOf(new Store(() => 0))).toBeNull();
    expect(fullnessOf(storeOf("snapshot", 1, []))).toBeNull();
  });
});

class FakeStorage implements Storage {
  private readonly items = new Map<string, string>();
  readonly length = 0;
  clear(): void {}
  key = () => null;
  getItem = (key: string) => this.items.get(key) ?? null;
  setItem = (key: string, value: string) => void this.items.set(key, value);
  removeItem = (key: string) => void this.items.delete(key);
}
