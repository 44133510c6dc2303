import { describe, expect, test } from "vitest";
import { StepTable } from "../src/core/steps.ts";
import { random, STEP_COLUMNS, stepRow, tableOf } from "./frames.ts";

const WIDTH = STEP_COLUMNS.length;

function rowsOf(rows: number[][]) {
  return { values: Float64Array.from(rows.flat()), columns: WIDTH };
}

function groups(table: StepTable) {
  return Array.from({ length: table.length }, (_, row) => table.group(row));
}

describe("StepTable", () => {
  test("a row that came before is taken once", () => {
    const table = tableOf([1, 2, 2, 1, 3].map((number) => stepRow({ number })));
    expect(groups(table).map(({ first }) => first)).toEqual([1, 2, 3]);
  });

  test("a group that has grown replaces its earlier row", () => {
    const grown = stepRow({ number: 2, start: 1, stop: 4, tokens: 300 });
    grown[2] = 4;
    const table = tableOf([stepRow({ number: 1 }), stepRow({ number: 2 }), stepRow({ number: 3 }), grown]);
    expect(groups(table).map(({ first, last, tokens }) => [first, last, tokens])).toEqual([
      [1, 1, 100],
      [2, 4, 300],
    ]);
  });

  test("any number of steps stays within its bound, and keeps sums, extremes and the worst exact", () => {
    const next = random(1);
    const table = new StepTable(256);
    table.adopt(STEP_COLUMNS);
    const peaks: number[] = [];
    let tokens = 0;
    for (let number = 1; number <= 20_000; number++) {
      peaks.push(Math.floor(1e6 * next()));
      tokens += number % 97;
      const parent = 1 + Math.floor(number / 3000);
      table.append(rowsOf([stepRow({ number, parent, tokens: number % 97, peak: peaks.at(-1)! })]));
      if (table.length > 256) throw new Error(`${table.length} rows after ${number} steps`);
    }
    const memories = Array.from({ length: table.length }, (_, row) => table.memory(row, "cuda:0")!);
    const worst = memories.reduce((best, each) => (each.peak > best.peak ? each : best));
    expect(worst.peak).toBe(Math.max(...peaks));
    expect(worst.worst).toBe(peaks.indexOf(worst.peak) + 1);
    expect(worst.worstTokens).toBe(worst.worst % 97);
    expect(Math.min(...memories.map(({ lowest }) => lowest))).toBe(Math.min(...peaks));
    const all = groups(table);
    expect(all.reduce((sum, each) => sum + each.tokens, 0)).toBe(tokens);
    expect(all.slice(1).every((each, at) => each.first === all[at]!.last + 1)).toBe(true);
    expect(all.at(-1)).toMatchObject({ first: 20_000, last: 20_000 });
  });

  test("groups are of about one size, not the older the larger", () => {
    const table = new StepTable(256);
    table.adopt(STEP_COLUMNS);
    for (let number = 1; number <= 20_000; number++) table.append(rowsOf([stepRow({ number })]));
    const sizes = groups(table).map(({ first, last }) => last - first + 1);
    expect(Math.max(...sizes)).toBeLessThanOrEqual(256);
    expect(table.length).toBeGreaterThan(128);
  });

  test("neighbours of different parents never fold into one", () => {
    const table = new StepTable(128);
    table.adopt(STEP_COLUMNS);
    for (let number = 1; number <= 1000; number++) {
      table.append(rowsOf([stepRow({ number, parent: number })]));
    }
    expect(table.length).toBeLessThanOrEqual(128);
    expect(groups(table).every(({ first, last }) => first === last)).toBe(true);
    expect(groups(table).at(-1)).toMatchObject({ first: 1000 });
  });

  test("columns that are added later are not known of the rows before", () => {
    const table = tableOf([stepRow({ number: 1 })]);
    table.adopt([...STEP_COLUMNS, "cuda:1/peak", "cuda:1/worst"]);
    table.append({ values: Float64Array.from([...stepRow({ number: 2 }), 77, 2]), columns: WIDTH + 2 });
    expect(table.memory(0, "cuda:0")).toMatchObject({ peak: 10 });
    expect(table.memory(0, "cuda:1")).toBeNull();
    expect(table.memory(1, "cuda:1")).toMatchObject({ peak: 77, worst: 2 });
  });

  test("rows that are narrower or wider than the named columns are read as far as they match", () => {
    const table = tableOf([]);
    table.append({ values: Float64Array.from(stepRow({ number: 1 }).slice(0, 9)), columns: 9 });
    table.append({ values: Float64Array.from([...stepRow({ number: 2 }), 1, 2, 3]), columns: WIDTH + 3 });
    expect(groups(table).map(({ tokens }) => tokens)).toEqual([100, 100]);
    expect(table.memory(0, "cuda:0")).toBeNull();
  });

  test("rows without a place in time are left out, and nothing throws", () => {
    const table = tableOf([
      stepRow({ number: 1, stop: Number.NaN }),
      stepRow({ number: 1, start: 9, stop: 2 }),
    ]);
    expect(table.length).toBe(0);
    const next = random(5);
    for (let attempt = 0; attempt < 2000; attempt++) {
      const values = Float64Array.from(
        { length: WIDTH },
        () => [next(), 1e300, -1e300, NaN, Infinity][Math.floor(5 * next())]!,
      );
      table.append({ values, columns: WIDTH });
    }
    expect(table.length).toBeLessThanOrEqual(2000);
  });

  test("columns without end take no memory without end", () => {
    const names = [...STEP_COLUMNS, ...Array.from({ length: 50_000 }, (_, index) => `x${index}`)];
    const table = new StepTable();
    table.adopt(names);
    for (let number = 1; number <= 3000; number++) table.append(rowsOf([stepRow({ number })]));
    expect(table.length).toBeLessThan(500);
    expect(table.memory(0, "cuda:0")).not.toBeNull();
  });
});
