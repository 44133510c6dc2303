/** What Python wrote (`tests/contract/frames`), through the real decoder into the real store. */

import { describe, expect, test, vi } from "vitest";
import { conditionOf } from "../src/core/condition.ts";
import { gapsWithin } from "../src/core/gaps.ts";
import { knowsParts } from "../src/core/parts.ts";
import { findPeak } from "../src/core/peak.ts";
import { partsAt } from "../src/core/readings.ts";
import { Store } from "../src/core/store.ts";
import { decoded, history, RECORDINGS, type Recording } from "./recordings.ts";

const MIB = 2 ** 20;
const {
  "one-gpu": oneGpu,
  "eight-gpus": eightGpus,
  "gap-and-spans": gapAndSpans,
  failed,
  "gpu-appears": gpuAppears,
  training,
  anatomy,
  judged,
  ranks,
} = RECORDINGS;

function play(recording: Recording, isLost: (index: number) => boolean = () => false): Store {
  const store = new Store(() => 0);
  decoded(recording).forEach((message, index) => {
    if (!isLost(index)) store.apply(message);
  });
  return store;
}

function times({ timeline }: Store): number[] {
  return [...timeline.time.slice(0, timeline.length)];
}

function mebibytes(store: Store, device: string, metric: string): number[] {
  const column = store.timeline.columns[store.columnOf(device, metric)]!;
  return [...column.values.slice(0, store.timeline.length)].map((value) => value / MIB);
}

function extremes({ timeline }: Store): [number, number][] {
  return timeline.columns.map((column) => {
    column.scan(0, timeline.length);
    return [column.low, column.high];
  });
}

function stepsOf({ steps }: Store) {
  return Array.from({ length: steps.length }, (_, row) => ({
    ...steps.group(row),
    one: steps.memory(row, "cuda:0"),
    two: steps.memory(row, "cuda:1"),
  }));
}

function everything(store: Store) {
  const { schema, status, spans, seq, timeline, findings, guides, ranks } = store;
  const values = timeline.columns.map((column) => column.values.slice(0, timeline.length));
  const steps = stepsOf(store);
  const told = { schema, status, spans, seq, findings, guides, ranks };
  return { ...told, times: times(store), values, gaps: timeline.gaps, steps };
}

/** What a fold leaves as it was. */
function essence(store: Store) {
  const { schema, status, spans, seq } = store;
  return { schema, status, spans, seq, extremes: extremes(store) };
}

describe.each<[string, Recording]>(Object.entries(RECORDINGS))("%s", (name, recording) => {
  const last = recording.messages.length - 1;
  // A folded snapshot tells a stretch by its lowest and its highest.
  const told = name === "eight-gpus" ? essence : everything;

  test("every message is understood, and none is missed", () => {
    const onGap = vi.fn();
    const store = new Store(() => 0, onGap);
    for (const [index, message] of decoded(recording).entries()) {
      expect(message, `message ${index}`).toMatchObject({ run: "9f2c51aa", seq: index + 1 });
      store.apply(message);
    }
    expect(onGap).not.toHaveBeenCalled();
    expect(store.seq).toBe(last + 1);
    expect(store.status?.elapsed).toBe(store.timeline.last);
  });

  test("whichever message is lost, the last snapshot heals it", () => {
    const whole = told(play(recording));
    for (let lost = 0; lost < last; lost++) {
      expect(told(play(recording, (index) => index === lost)), `without message ${lost}`).toEqual(whole);
    }
  });

  test("the last snapshot alone tells the run", () => {
    expect(told(play(recording, (index) => index < last))).toEqual(told(play(recording)));
  });

  test("the history of a later page has the earlier data, and takes what follows", () => {
    const { after } = recording.history;
    const store = new Store(() => 0);
    store.apply(history(recording));
    expect(store.seq).toBe(0);
    expect(extremes(store)).toEqual(extremes(play(recording, (index) => index >= after)));
    for (const message of decoded(recording).slice(after)) store.apply(message);
    expect(told(store)).toEqual(told(play(recording)));
  });
});

describe("one GPU", () => {
  const store = play(oneGpu);

  test("the schema names the run, the device and its series, in bytes", () => {
    expect(store.schema).toEqual({
      label: "fine-tune",
      started_at: 1_763_683_200,
      panel: true,
      step_columns: expect.arrayContaining(["parent", "tokens", "cuda:0/peak", "cuda:0/optimizer"]),
      devices: [{ key: "cuda:0", name: "NVIDIA H200", total: 143_771 * MIB }],
      series: [
        { device: "cuda:0", metric: "allocated", label: "allocated" },
        { device: "cuda:0", metric: "reserved", label: "reserved" },
        { device: "cuda:0", metric: "device_used", label: "device in use" },
      ],
    });
  });

  test("every sample has its time and its values", () => {
    expect(times(store)).toEqual(Array.from({ length: 14 }, (_, index) => 0.125 * (index + 1)));
    const rising = [0, 100, 200, 300, 400, 500, 600, 700];
    expect(mebibytes(store, "cuda:0", "allocated")).toEqual([0, ...rising, 5000, 3840, 6500, 3840, 3840]);
    expect(mebibytes(store, "cuda:0", "device_used").slice(-5)).toEqual([7444, 7444, 8888, 8888, 8888]);
  });

  test("a span has its times and its effect on the device", () => {
    expect([...store.spans.values()].map(({ id, parent, kind }) => [id, parent, kind])).toEqual([
      [1, null, "cell"],
    ]);
    const memory = { before: 0, after: 3840 * MIB, peak: 7160 * MIB, certainty: "exact" };
    expect(store.spans.get(1)).toEqual({
      id: 1,
      parent: null,
      kind: "cell",
      label: "fine-tune",
      start: 0.125,
      stop: 1.75,
      outcome: "done",
      devices: { "cuda:0": memory },
    });
  });

  test("the peak is the allocator's own, marked in the step in which it was", () => {
    expect(findPeak(store, "cuda:0")).toEqual({ time: 1.5, bytes: 7160 * MIB, certainty: "exact" });
  });

  test("the run has stopped, and a tick cost 31 µs", () => {
    expect(store.status).toEqual({
      state: "stopped",
      elapsed: 1.75,
      interval: 0.125,
      missed: 0,
      cost: 0.000031,
      text: "",
    });
  });

  test("a page that opens in the middle has the open cell and the closed step", () => {
    const late = new Store(() => 0);
    late.apply(history(oneGpu));
    expect(late.status).toMatchObject({ state: "running", elapsed: 1.375 });
    expect([...late.spans.values()].map(({ label, stop }) => [label, stop])).toEqual([["fine-tune", null]]);
    expect(stepsOf(late)).toMatchObject([{ first: 1, last: 1, start: 1.125, stop: 1.375 }]);
    expect(late.spans.get(1)!.devices["cuda:0"]).toMatchObject({ after: null, peak: 5000 * MIB });
    expect(times(late)).toHaveLength(11);
  });
});

describe("eight GPUs", () => {
  const store = play(eightGpus);

  test("each has its own columns", () => {
    for (let index = 0; index < 7; index++) {
      const highest = Math.max(...mebibytes(store, `cuda:${index}`, "allocated"));
      expect(highest).toBe(30_000 + index);
    }
    expect(store.timeline.columns).toHaveLength(24);
  });

  test("a span has nothing to say about the device that it did not touch", () => {
    const { devices } = store.spans.get(1)!;
    expect(Object.keys(devices)).toEqual([0, 1, 2, 3, 4, 5, 6].map((index) => `cuda:${index}`));
    expect(devices["cuda:6"]).toMatchObject({ peak: 40_006 * MIB, certainty: "exact" });
    expect(findPeak(store, "cuda:7")).toMatchObject({ bytes: 0, certainty: "sampled" });
  });

  test("a folded snapshot has two rows at a time, the lower before the higher", () => {
    const healed = play(eightGpus, (index) => index < eightGpus.messages.length - 1);
    const at = times(healed);
    expect(at.length).toBeLessThan(times(store).length);
    const pairs = Array.from({ length: at.length / 2 }, (_, pair) => 2 * pair);
    expect(pairs.map((row) => at[row])).toEqual(pairs.map((row) => at[row + 1]));
    const values = mebibytes(healed, "cuda:0", "allocated");
    for (const row of pairs) expect(values[row]).toBeLessThanOrEqual(values[row + 1]!);
    expect(Math.max(...values)).toBe(30_000);
  });
});

describe("a gap and spans", () => {
  const store = play(gapAndSpans);

  test("one row of nothing breaks all lines where nothing was sampled", () => {
    expect(times(store).map((time, row) => [time, mebibytes(store, "cuda:0", "allocated")[row]])).toEqual([
      [0.125, 256],
      [0.25, 512],
      [0.375, 768],
      [0.5, 640],
      [4.0625, Number.NaN],
      [7.625, 640],
      [7.75, 700],
      [7.875, 600],
    ]);
    expect(gapsWithin(store.timeline, [0, 8], 0.5)).toEqual([{ start: 0.5, stop: 7.625 }]);
    expect(store.status?.missed).toBe(56);
  });

  test("a reading that is missing is a break of its own line alone", () => {
    expect(mebibytes(store, "cuda:0", "device_used")[2]).toBeNaN();
    expect(store.timeline.gaps.map((row) => store.timeline.time[row])).toEqual([4.0625]);
  });

  test("every peak says how surely it is known", () => {
    const peaks = [...store.spans.values()].map(({ kind, devices }) => {
      const { peak, certainty } = devices["cuda:0"]!;
      return [kind, peak! / MIB, certainty];
    });
    expect(peaks).toEqual([
      ["cell", 900, "at least"],
      ["train", 768, "sampled"],
      ["save", 640, "sampled"],
      ["evaluate", 700, "sampled"],
    ]);
    expect(findPeak(store, "cuda:0")).toMatchObject({ bytes: 900 * MIB, certainty: "at least" });
  });

  test("spans lie in one another", () => {
    expect([...store.spans.values()].map(({ id, parent }) => [id, parent])).toEqual([
      [1, null],
      [2, 1],
      [4, 1],
      [5, 1],
    ]);
    expect(store.spans.get(1)!.outcome).toBe("interrupted");
  });

  test("text comes as it was written", () => {
    expect(store.schema!.label).toBe('über <b>"all"</b> & $x$');
    expect(store.spans.get(1)!.label).toBe("a <cell>");
  });
});

describe("a training", () => {
  const store = play(training);

  test("steps are rows of figures, and no spans", () => {
    expect([...store.spans.values()].map(({ kind }) => kind)).toEqual(["cell", "train", "evaluate", "save"]);
    expect(stepsOf(store).map(({ parent, first, last }) => [parent, first, last])).toEqual(
      Array.from({ length: 12 }, (_, index) => [2, index + 1, index + 1]),
    );
  });

  test("a step has its place in time, its batch and its tokens", () => {
    expect(store.steps.group(6)).toEqual({
      parent: 2,
      first: 7,
      last: 7,
      start: 1.625,
      stop: 1.875,
      samples: 8,
      longest: 128,
      tokens: 1024,
      contentTokens: 1016,
    });
  });

  test("a step tells its peak, that of each phase, and how surely it is known", () => {
    expect(store.steps.memory(6, "cuda:0")).toEqual({
      peak: 7024 * MIB,
      certainty: "exact",
      lowest: 7024 * MIB,
      worst: 7,
      worstTokens: 1024,
      after: 3840 * MIB,
      forward: 6048 * MIB,
      backward: 7024 * MIB,
      optimizer: 4800 * MIB,
    });
  });

  test("of a device that appears nothing is known before", () => {
    expect(store.steps.memory(7, "cuda:1")).toBeNull();
    expect(store.steps.memory(8, "cuda:1")).toMatchObject({ peak: 900 * MIB, worst: 9 });
  });

  test("the whole training counts its steps, and the path names the one that goes on", () => {
    expect(store.spans.get(2)!.counts).toEqual({ steps: 12, epochs: 1 });
    const [, , third] = decoded(training);
    expect(third).toMatchObject({ status: { path: ["fine-tune", "train", "step 2 of 12"] } });
  });

  test("the peak is marked within the step in which it was", () => {
    expect(findPeak(store, "cuda:0")).toMatchObject({ time: 1.75, bytes: 7024 * MIB });
  });
});

describe("a failed run", () => {
  const store = play(failed);

  test("the cell has its exception", () => {
    expect(store.spans.get(1)).toMatchObject({ stop: 0.5, outcome: "raised OutOfMemoryError" });
  });

  test("the page says why the numbers end", () => {
    expect(conditionOf(store, 0)).toEqual({
      kind: "failed",
      text: "NVML was unloaded: driver/library version mismatch",
    });
  });
});

describe("an anatomy", () => {
  const store = play(anatomy);
  const mebibytesOf = (row: number) =>
    Object.fromEntries(
      Object.entries(partsAt(store, "cuda:0", row)).map(([name, bytes]) => [name, bytes / MIB]),
    );

  test("parts have columns from the moment they are known, which the page names by itself", () => {
    expect(decoded(anatomy)[0]).toMatchObject({ schema: { series: { length: 4 } } });
    expect(store.schema!.series.slice(3).map((series) => series.metric)).toEqual([
      ...["context", "weights", "buffers", "gradients", "optimizer", "unattributed"],
    ]);
    expect(store.schema!.series[4]).toEqual({ device: "cuda:0", metric: "weights" });
    expect(knowsParts(store, "cuda:0")).toBe(true);
    expect(knowsParts(play(oneGpu), "cuda:0")).toBe(false);
  });

  test("each instant has its parts, which add up to allocated memory", () => {
    const held = {
      weights: 1200,
      buffers: 16,
      kv_cache: 0,
      libraries: 0,
      python: 0,
      arrow: 0,
      before: 0,
      kept: 0,
      unattributed: 64,
    };
    expect(mebibytesOf(5)).toEqual({ ...held, optimizer: 2432, gradients: 0, activations: 3088 });
    expect(mebibytesOf(6)).toEqual({ ...held, optimizer: 2432, gradients: 1200, activations: 0 });
    expect(times(store).slice(5, 7)).toEqual([0.75, 0.875]);
  });

  test("before they were found, and outside of steps, the rest is not attributed", () => {
    expect(mebibytesOf(1)).toMatchObject({ weights: 0, unattributed: 1280, activations: 0 });
    expect(mebibytesOf(store.timeline.length - 1)).toMatchObject({ unattributed: 96, activations: 0 });
  });
});

describe("a GPU that appears", () => {
  const store = play(gpuAppears);

  test("its series come at the end, under a schema of their own", () => {
    const [first] = decoded(gpuAppears);
    expect(first).toMatchObject({ schema: { devices: [{ key: "cpu", total: null }] } });
    expect(store.schema!.devices.map(({ key }) => key)).toEqual(["cuda:0", "cpu"]);
    expect(store.schema!.series.map(({ device, metric }) => `${device}/${metric}`)).toEqual([
      "cpu/allocated",
      "cpu/reserved",
      "cpu/device_used",
      "cuda:0/allocated",
      "cuda:0/reserved",
      "cuda:0/device_used",
    ]);
    expect(store.schema!.series[0]!.label).toBe("heap in use");
  });

  test("before that they are not available, and the others go on", () => {
    expect(mebibytes(store, "cuda:0", "allocated")).toEqual([...Array(5).fill(Number.NaN), 128, 384, 128]);
    expect(mebibytes(store, "cpu", "allocated")).toEqual([200, 220, 220, 220, 220, 230, 230, 230]);
    expect(store.timeline.gaps).toEqual([]);
  });

  test("a span that began before it knows no reading of it at its start", () => {
    expect(store.spans.get(1)!.devices["cuda:0"]).toEqual({
      before: null,
      after: 128 * MIB,
      peak: 512 * MIB,
      certainty: "exact",
    });
  });
});

describe("findings and guides", () => {
  const store = play(judged);

  test("a finding tells its sentence, how grave it is, its span, and where and when it was", () => {
    expect(store.findings).toEqual([
      { kind: "budget", severity: "warn", title: "over 2.00 GiB.", span: 1, device: "cuda:0", time: 0.25 },
    ]);
  });

  test("a budget goes on as long as the run, and a trend has a band", () => {
    const of = (kind: string) => store.guides.find((guide) => guide.kind === kind);
    const level = { first: 2048 * MIB, last: 2048 * MIB, band: [0, 0] };
    expect(of("budget")).toEqual({
      ...{ device: "cuda:0", kind: "budget", label: "budget", start: 0, stop: null },
      ...level,
    });
    expect(of("trend")).toMatchObject({ start: 0.125, stop: 0.375, band: [8 * MIB, 8 * MIB] });
  });

  test("they come with the news in which they are new, and with snapshots, and not again", () => {
    const told = judged.messages.map(({ content }) => "guides" in content);
    const kinds = judged.messages.map(({ content }) => content.kind);
    expect([kinds, told]).toEqual([
      ["snapshot", "rows", "snapshot"],
      [false, true, true],
    ]);
  });
});

describe("all ranks", () => {
  const store = play(ranks);
  const { table, phases, strip } = store.ranks!;

  test("how many there are, and how the lowest and the median stand", () => {
    const known = { world: 16, nodes: 2, reporting: 15, engine: "torchrun", lowestRank: 3 };
    expect(store.ranks).toMatchObject({ ...known, lowest: 1920 * MIB, median: 2048 * MIB });
  });

  test("the worst rank first, each with its known figures", () => {
    const device = { host: "node1", device: "NVIDIA H200", total: 4096 * MIB };
    const figures = { peak: 2560 * MIB, certainty: "exact", weights: 512 * MIB, activations: Number.NaN };
    const rest = { rank: 9, attempt: 0, step: 16, phase: "backward", silent: 0, flag: "outlier" };
    expect(table[0]).toEqual({ ...device, ...figures, ...rest });
    expect(table.map(({ rank, certainty }) => [rank, certainty])).toEqual([
      [9, "exact"],
      [2, "at least"],
      [3, "sampled"],
      [15, "exact"],
    ]);
    expect(table[3]).toMatchObject({ total: Number.NaN, peak: Number.NaN, silent: 38, flag: "silent" });
  });

  test("text from outside is text", () => {
    expect(table[1]).toMatchObject({ host: "<img src=x> $x$", device: "H100 <b>", attempt: 1 });
  });

  test("the phases compared", () => {
    expect(phases).toEqual([
      { kind: "backward", low: 2048 * MIB, median: 2048 * MIB, high: 2560 * MIB, rank: 9 },
    ]);
  });

  test("a column for each tick, and a silent rank", () => {
    expect(strip.first).toEqual(Array.from({ length: 16 }, (_, rank) => rank));
    expect(strip.at).toEqual(Array.from({ length: 16 }, (_, at) => 0.125 * (at + 1)));
    expect([...strip.cells.slice(-16)]).toEqual([
      ...new Array(9).fill(66),
      166,
      ...new Array(5).fill(66),
      255,
    ]);
  });

  test("the newest columns come between two snapshots, and make the same strip", () => {
    const frames = decoded(ranks);
    const news = frames.filter((message) => message?.kind === "rows" && message.ranks !== null);
    expect(news.length).toBeGreaterThan(0);
    const before = new Store(() => 0);
    for (const message of frames.slice(0, -1)) before.apply(message);
    const { at, cells } = before.ranks!.strip;
    expect(at).toEqual(strip.at.slice(0, at.length));
    expect([...cells]).toEqual([...strip.cells.slice(0, cells.length)]);
  });
});
