/** Rules that the live chart shares with Python's still pictures (`tests/contract/test_rules.py`). */

import { describe, expect, test } from "vitest";
import table from "../../tests/contract/rules.json";
import { timeTicks, valueTicks } from "../src/core/axis.ts";
import { contrast, inkOn, PEAK, spanColor } from "../src/core/colors.ts";
import {
  formatBytes,
  formatChange,
  formatCount,
  formatCounted,
  formatDuration,
  formatShare,
  formatTick,
  forPlotly,
} from "../src/core/format.ts";
import { guidesIn } from "../src/core/guides.ts";
import { type Guide, SEVERITIES } from "../src/core/judged.ts";
import { fold, layLanes, rangeLabel } from "../src/core/lanes.ts";
import { MARKS } from "../src/core/notice.ts";
import { peakText } from "../src/core/peak.ts";
import type { Certainty, Span } from "../src/core/protocol.ts";
import { defaultSettings } from "../src/core/settings.ts";
import { stackOf } from "../src/core/stack.ts";
import { laySteps, worstOf } from "../src/core/steplane.ts";
import { joined, StepTable } from "../src/core/steps.ts";
import { Store } from "../src/core/store.ts";
import { span, stepRow, tableOf } from "./frames.ts";

type Known = number | string | null;

type Objects =
  | "stacks"
  | "step_columns"
  | "merges"
  | "step_folds"
  | "span_folds"
  | "lanes"
  | "guides"
  | "severities";

interface Rules extends Pick<typeof table, Objects> {
  bytes: [Known, string][];
  changes: [Known, string][];
  counts: [Known, string][];
  counted: [Known, string, string][];
  durations: [Known, string][];
  peaks: [Known, Certainty, string][];
  shares: [Known, string][];
  plotly: [string, string][];
  range_labels: [string, string, string][];
  tick_texts: [number, number, number, string][];
  time_ticks: [number, number, string][];
  value_ticks: [number, number, string][];
  bars: [string, number, boolean, string, string][];
  worst_steps: [Known[], Known[] | null, number | null][];
  worst_sampled_steps: [Known[], Known[] | null, number | null][];
}

const rules = table as unknown as Rules;

const SECONDS = 100;
const VIEW = { device: "cuda:0", now: SECONDS, range: [0, SECONDS], pixels: 1e9 } as const;

/** Null is what is not known. */
function known(value: Known): number {
  return value === null ? Number.NaN : Number(value);
}

function tableFrom(rows: (number | null)[][]): StepTable {
  return tableOf(
    rows.map((row) => row.map(known)),
    rules.step_columns,
  );
}

function groupsOf(table: StepTable, device: string) {
  return Array.from({ length: table.length }, (_, row) => table.groupOn(row, device));
}

describe("texts are those of Python", () => {
  test.each(rules.bytes)("%s bytes are %s", (bytes, text) => {
    expect(formatBytes(known(bytes))).toBe(text);
  });

  test.each(rules.changes)("a change of %s bytes is %s", (bytes, text) => {
    expect(formatChange(known(bytes))).toBe(text);
  });

  test.each(rules.counts)("a count of %s is %s", (count, text) => {
    expect(formatCount(known(count))).toBe(text);
  });

  test.each(rules.counted)("%s of a %s are %s", (count, noun, text) => {
    expect(formatCounted(known(count), noun)).toBe(text);
  });

  test.each(rules.durations)("%s seconds are %s", (seconds, text) => {
    expect(formatDuration(known(seconds))).toBe(text);
  });

  test.each(rules.peaks)("a peak of %s bytes, %s, is %s", (bytes, certainty, text) => {
    expect(peakText(known(bytes), certainty)).toBe(text);
  });

  test.each(rules.shares)("a share of %s is %s", (share, text) => {
    expect(formatShare(known(share))).toBe(text);
  });

  test.each(rules.plotly)("nothing is left in %s that Plotly would interpret", (text, escaped) => {
    expect(forPlotly(text)).toBe(escaped);
  });

  test.each(rules.range_labels)("from %s to %s is %s", (first, last, text) => {
    expect(rangeLabel(first, last)).toBe(text);
  });
});

describe("ticks are those of Python", () => {
  test.each(rules.tick_texts)("at %s s, every %s s up to %s s, stands %s", (seconds, step, end, text) => {
    expect(formatTick(seconds, step, end)).toBe(text);
  });

  test.each(rules.time_ticks)("up to %s s there are about %s", (stop, count, texts) => {
    const ticks = timeTicks([0, stop], count);
    expect(ticks.texts.join()).toBe(texts);
    expect(ticks.values.at(-1)).toBeLessThanOrEqual(stop * (1 + 1e-9));
  });

  test.each(rules.value_ticks)("up to %s GiB there are about %s", (top, count, texts) => {
    expect(valueTicks(top, count).texts.join()).toBe(texts);
  });
});

describe("colours are those of Python", () => {
  test.each(rules.bars)(
    "of a bar of a %s in lane %s, worst or not: %s",
    (kind, lane, isWorst, color, ink) => {
      expect(isWorst ? PEAK : spanColor(kind, lane)).toBe(color);
      expect(inkOn(color)).toBe(ink);
      expect(contrast(color, ink)).toBeGreaterThanOrEqual(4.5);
    },
  );
});

describe("parts stand as in Python", () => {
  test.each(rules.stacks)("$name", ({ allocated, read, stack }) => {
    const found = Object.entries(read).map(([name, bytes]) => [name, Float32Array.of(known(bytes))]);
    const bands = stackOf(Float32Array.of(allocated), Object.fromEntries(found));
    expect(bands.map(({ part, top }) => [part, top[0]])).toEqual(stack);
  });
});

describe("steps merge as in Python", () => {
  test.each(rules.merges)("$name", ({ rows, merged }) => {
    for (const device of ["cuda:0", "cuda:1"]) {
      const [expected] = groupsOf(tableFrom([merged]), device);
      expect(groupsOf(tableFrom(rows), device).reduce(joined)).toEqual(expected);
    }
  });

  test("and so they do in a table that is full", () => {
    const pair = rules.merges.find(({ rows }) => rows.length === 2)!;
    const fillers = Array.from({ length: 7 }, (_, at) =>
      stepRow({ number: 10 + at, parent: 10 + at }).concat(new Array(9).fill(null)),
    );
    const table = new StepTable(8);
    table.adopt(rules.step_columns);
    const values = Float64Array.from([...pair.rows, ...fillers].flat(), known);
    table.append({ values, columns: rules.step_columns.length });
    for (const device of ["cuda:0", "cuda:1"])
      expect(table.groupOn(0, device)).toEqual(groupsOf(tableFrom([pair.merged]), device)[0]);
  });
});

describe("steps fold as in Python", () => {
  test.each(rules.step_folds)("$name", ({ first = 1, steps, most, bars }) => {
    const parents = steps.flatMap(([parent, count]) => new Array<number>(count!).fill(parent!));
    const rows = parents.map((parent, at) =>
      stepRow({ number: first + at, parent, start: at, stop: at + 1 }),
    );
    const { groups } = laySteps(tableOf(rows), () => 0, VIEW, most);
    expect(groups.map(({ label }) => label.replace(/^\w+ /, "")).join()).toBe(bars);
  });

  const worstIs = (isSampled: boolean) => (peaks: Known[], tokens: Known[] | null, number: number | null) => {
    const rows = peaks.map((peak, at) =>
      stepRow({
        number: at + 1,
        peak: known(peak),
        tokens: tokens === null ? 8 : known(tokens[at]!),
        isSampled,
      }),
    );
    expect(worstOf(groupsOf(tableOf(rows), "cuda:0"))?.first ?? null).toBe(number);
  };
  test.each(rules.worst_steps)("the worst of %j with %j tokens is %s", worstIs(false));
  test.each(rules.worst_sampled_steps)("by samples, the worst of %j with %j tokens is %s", worstIs(true));
});

describe("guides are drawn as in Python", () => {
  test.each(rules.guides)("$name", ({ guide, view: [start, stop], allocated, drawn }) => {
    const settings = { ...defaultSettings(), device: "cuda:0" };
    const told = { ...guide, device: "cuda:0", label: "g" } as Guide;
    const store = Object.assign(new Store(Date.now), { guides: [told] });
    const range = [start!, stop!] as const;
    const found = guidesIn(store, settings, { range, now: SECONDS, allocated });
    const parts = found.map(({ ends, band, isCrossed }) => ({ ends, band, crossed: isCrossed }));
    expect(parts).toEqual(drawn === null ? [] : [drawn]);
  });

  test("and findings are marked so", () => {
    expect(SEVERITIES.map((severity) => [severity, ...MARKS[severity]])).toEqual(rules.severities);
  });
});

describe("spans lie as in Python", () => {
  test.each(rules.span_folds)("$name", ({ spans, most, groups }) => {
    const lane = spans.map((told, at): Span => {
      const [kind, open] = told.split(" ");
      return { ...span(at, null, kind!, at, at + 1), stop: open ? null : at + 1 };
    });
    expect(fold(lane, lane.length / most).map(({ length }) => length)).toEqual(groups);
  });

  test.each(rules.lanes)("$name", ({ spans, lanes }) => {
    const told = spans.map(([id, parent, kind, start, stop]) =>
      span(Number(id), parent as number | null, String(kind), Number(start), Number(stop)),
    );
    const bars = layLanes(told, tableOf([]), VIEW);
    expect(Object.fromEntries(bars.map(({ label, lane }) => [label.split(" ")[1], lane]))).toEqual(lanes);
  });
});
