import { describe, expect, test, vi } from "vitest";
import { decode } from "../src/core/protocol.ts";
import { Store } from "../src/core/store.ts";
import { type Frame, frame, level, message, random, span, stepRow, withSteps } from "./frames.ts";

function times(store: Store): number[] {
  return [...store.timeline.time.slice(0, store.timeline.length)];
}

function deliver(store: Store, { content, buffers }: Frame): void {
  store.apply(decode(content, buffers));
}

function extremes(store: Store): [number, number][] {
  return store.timeline.columns.map((column) => {
    column.scan(0, store.timeline.length);
    return [column.low, column.high];
  });
}

describe("Store", () => {
  test("rows before any snapshot wait for it", () => {
    const store = new Store(Date.now);
    store.apply(message("rows", 1, [level(2, 20)]));
    expect(store.schema).toBeNull();
    expect(store.timeline.length).toBe(0);
    store.apply(message("snapshot", 0, [level(1, 10)]));
    expect(times(store)).toEqual([1, 2]);
    expect(store.seq).toBe(1);
  });

  test("a snapshot after no loss leaves the finer rows", () => {
    const store = new Store(Date.now);
    store.apply(message("snapshot", 0, [level(0, 1)]));
    store.apply(message("rows", 1, [level(1, 1), level(2, 2), level(3, 3)]));
    store.apply(message("snapshot", 2, [level(0, 1), level(3, 3), level(4, 4)]));
    expect(times(store)).toEqual([0, 1, 2, 3, 4]);
  });

  test("a snapshot after a loss replaces the rows except the later ones", () => {
    const store = new Store(Date.now);
    store.apply(message("snapshot", 0, [level(0, 1)]));
    store.apply(message("rows", 2, [level(5, 5), level(9, 9)]));
    store.apply(message("snapshot", 3, [level(0, 1), level(3, 70), level(5, 5)]));
    expect(times(store)).toEqual([0, 3, 5, 9]);
  });

  test("a snapshot after a loss leaves the finer rows from before it", () => {
    const store = new Store(Date.now);
    store.apply(
      message(
        "snapshot",
        0,
        [0, 1, 2, 3, 4].map((second) => level(second, 1)),
      ),
    );
    store.apply(message("rows", 2, [level(9, 1)]));
    store.apply(message("snapshot", 3, [level(0, 1), level(3.5, 1), level(7, 1), level(9, 1)]));
    expect(times(store)).toEqual([0, 1, 2, 3, 3.5, 7, 9]);
  });

  test("a coarse snapshot changes no row of a page that missed nothing", () => {
    const store = new Store(Date.now);
    store.apply(message("snapshot", 0, [level(0, 1), level(1, 1)]));
    store.apply(message("snapshot", 1, [level(0, 1), level(4, 1)], { coarse: true }));
    store.apply(message("rows", 2, [level(2, 1), level(3, 1), level(4, 1)]));
    expect(times(store)).toEqual([0, 1, 2, 3, 4]);
  });

  test("a coarse snapshot is a beginning, and the next full one makes it fine, once", () => {
    const store = new Store(Date.now);
    store.apply(message("snapshot", 7, [level(0, 1), level(4, 1)], { coarse: true }));
    store.apply(message("rows", 8, [level(5, 1), level(6, 1)]));
    store.apply(message("snapshot", 9, [level(0, 1), level(6, 1)], { coarse: true }));
    expect(times(store)).toEqual([0, 4, 5, 6]);
    store.apply(
      message(
        "snapshot",
        10,
        [0, 1, 2, 3, 4, 5, 6].map((second) => level(second, 1)),
      ),
    );
    expect(times(store)).toEqual([0, 1, 2, 3, 4, 5, 6]);
    store.apply(message("snapshot", 11, [level(0, 1), level(6, 1)]));
    expect(store.timeline.length).toBe(7);
  });

  test("a coarse snapshot fills the gap, and changes nothing before it", () => {
    const store = new Store(Date.now);
    store.apply(message("snapshot", 0, [level(0, 1), level(1, 1), level(2, 1)]));
    store.apply(message("rows", 5, [level(8, 1)]));
    store.apply(
      message("snapshot", 6, [level(0, 1), level(2, 1), level(5, 1), level(8, 1)], { coarse: true }),
    );
    expect(times(store)).toEqual([0, 1, 2, 5, 8]);
  });

  test("a gap in seq is reported once until it is healed", () => {
    const onGap = vi.fn();
    const store = new Store(Date.now, onGap);
    store.apply(message("snapshot", 0, [level(0, 1)]));
    for (const seq of [2, 3, 7]) store.apply(message("rows", seq, [level(seq, 1)]));
    expect(onGap).toHaveBeenCalledTimes(1);
    store.apply(message("snapshot", 8, [level(8, 1)]));
    store.apply(message("rows", 10, [level(10, 1)]));
    expect(onGap).toHaveBeenCalledTimes(2);
  });

  test("an old message changes nothing", () => {
    const store = new Store(Date.now);
    store.apply(message("snapshot", 5, [level(0, 1), level(4, 1)]));
    store.apply(message("rows", 3, [level(9, 1)], { spans: [span(1, null, "cell", 0, 1)] }));
    store.apply(message("snapshot", 4, [level(0, 1)]));
    expect(times(store)).toEqual([0, 4]);
    expect(store.spans.size).toBe(0);
  });

  test("a new run starts from nothing, and the old one does not come back", () => {
    const store = new Store(Date.now);
    store.apply(message("snapshot", 5, [level(0, 1), level(4, 1)], { spans: [span(1, null, "cell", 0, 1)] }));
    store.apply(message("snapshot", 0, [level(1, 1)], { run: "b" }));
    store.apply(message("rows", 6, [level(7, 1)]));
    store.apply(message("snapshot", 7, [level(7, 1)]));
    expect(store.run).toBe("b");
    expect(times(store)).toEqual([1]);
    expect(store.spans.size).toBe(0);
  });

  test("spans are replaced by id", () => {
    const store = new Store(Date.now);
    store.apply(message("snapshot", 0, [], { spans: [{ ...span(1, null, "cell", 0, 1), stop: null }] }));
    store.apply(message("rows", 1, [], { spans: [span(1, null, "cell", 0, 3), span(2, 1, "step", 1, 2)] }));
    expect([...store.spans.values()].map(({ stop }) => stop)).toEqual([3, 2]);
  });

  test("of very many spans the oldest closed ones are dropped, never those around others", () => {
    const store = new Store(Date.now);
    const saves = Array.from({ length: 30_000 }, (_, index) => span(index + 2, 1, "save", index, index + 1));
    const cell = { ...span(1, null, "cell", 0, 30_000), stop: null };
    store.apply(message("snapshot", 0, [], { spans: [cell, ...saves] }));
    expect(store.spans.size).toBeLessThanOrEqual(20_000);
    expect(store.spans.has(1)).toBe(true);
    expect(store.spans.has(30_001)).toBe(true);
    expect(store.spans.has(2)).toBe(false);
  });

  test("a missing value breaks the line and is not an extreme", () => {
    const store = new Store(Date.now);
    store.apply(message("snapshot", 0, [level(0, 4), level(1, Number.NaN), level(2, 6)]));
    expect(store.timeline.gaps).toEqual([1]);
    expect(extremes(store)[0]).toEqual([4, 6]);
  });

  test("a snapshot after a loss replaces the steps, and after none leaves the finer ones", () => {
    const rows = [1, 2, 3].map((number) => stepRow({ number }));
    const folded = stepRow({ number: 2, start: 0 });
    folded[1] = 1;
    for (const [lost, kept] of [
      [false, 3],
      [true, 2],
    ] as const) {
      const store = new Store(Date.now);
      deliver(store, withSteps(frame("snapshot", 0, []), []));
      rows.forEach((row, at) => {
        if (!(lost && at === 0)) deliver(store, withSteps(frame("rows", at + 1, []), [row]));
      });
      deliver(store, withSteps(frame("snapshot", 4, []), [folded, rows[2]!]));
      expect(store.steps.length).toBe(kept);
    }
  });

  test("a new run has none of the old one's steps", () => {
    const store = new Store(Date.now);
    deliver(store, withSteps(frame("snapshot", 0, []), [stepRow({ number: 1 })]));
    store.apply(message("snapshot", 0, [], { run: "b" }));
    expect(store.steps.length).toBe(0);
  });

  test("whatever was lost, doubled or reordered, the last snapshot tells all steps and the worst of them", () => {
    for (let seed = 1; seed <= 150; seed++) {
      const next = random(seed);
      const { stream, last } = randomTraining(next);
      const whole = new Store(Date.now);
      for (const each of [...stream, last]) deliver(whole, each);
      const damaged = new Store(Date.now);
      for (const each of [...damage(stream, next), last]) deliver(damaged, each);
      expect(essence(damaged), `seed ${seed}`).toEqual(essence(whole));
    }
  });

  test("whatever was lost, doubled or reordered, the last snapshot gives the extremes of the whole stream", () => {
    for (let seed = 1; seed <= 150; seed++) {
      const next = random(seed);
      const { stream, last } = randomStream(next);
      const whole = new Store(Date.now);
      for (const each of [...stream, last]) deliver(whole, each);
      const damaged = new Store(Date.now);
      for (const each of [...damage(stream, next), last]) deliver(damaged, each);
      expect(extremes(damaged), `seed ${seed}`).toEqual(extremes(whole));
      expect(damaged.timeline.last).toBe(whole.timeline.last);
      expect(damaged.spans).toEqual(whole.spans);
    }
  });
});

/** A run: a snapshot first, then all rows, sometimes a snapshot of what was sent, and one at the end. */
function randomStream(next: () => number): { stream: Frame[]; last: Frame } {
  const rows: ReturnType<typeof level>[] = [];
  const spans: ReturnType<typeof span>[] = [];
  const stream: Frame[] = [];
  let seq = 0;
  while (seq < 60) {
    const fresh = Array.from({ length: Math.floor(next() * 4) }, () => {
      const value = next() < 0.1 ? Number.NaN : Math.fround(next() * 100);
      return level(rows.length + next(), value);
    });
    fresh.sort((a, b) => a[0] - b[0]);
    fresh.forEach((row, index) => {
      row[0] = rows.length + index;
    });
    rows.push(...fresh);
    const opened = next() < 0.2 ? [span(spans.length + 1, null, "step", seq, seq + 1, seq)] : [];
    spans.push(...opened);
    if (seq > 0) stream.push(frame("rows", seq++, fresh, { spans: opened }));
    if (seq === 0 || next() < 0.15)
      stream.push(frame("snapshot", seq++, folded(rows), { spans: [...spans] }));
  }
  return { stream, last: frame("snapshot", seq, folded(rows), { spans: [...spans] }) };
}

/** Three rows become their lowest and their highest, at one time; the newest stays as it is. */
function folded(rows: ReturnType<typeof level>[]): ReturnType<typeof level>[] {
  const result = [];
  for (let from = 0; from < rows.length - 1; from += 3) {
    const values = rows.slice(from, Math.min(from + 3, rows.length - 1)).map((row) => row[1]!);
    const known = values.filter((value) => !Number.isNaN(value));
    const time = rows[from]![0];
    if (known.length === 0) result.push(level(time, Number.NaN));
    else result.push(level(time, Math.min(...known)), level(time, Math.max(...known)));
  }
  return rows.length > 0 ? [...result, rows.at(-1)!] : result;
}

/** A training in steps of random size, told as Python does: news, now and then all of it, folded by pairs. */
function randomTraining(next: () => number): { stream: Frame[]; last: Frame } {
  const rows: number[][] = [];
  const stream: Frame[] = [];
  let seq = 0;
  while (seq < 50) {
    const fresh = Array.from({ length: Math.floor(next() * 5) }, (_, at) => {
      const number = rows.length + at + 1;
      const [tokens, peak] = [Math.floor(1000 * next()), Math.floor(1000 * next())];
      return stepRow({ number, parent: number < 40 ? 1 : 2, tokens, peak });
    });
    rows.push(...fresh);
    if (seq > 0) stream.push(withSteps(frame("rows", seq++, []), fresh));
    if (seq === 0 || next() < 0.15) stream.push(withSteps(frame("snapshot", seq++, []), pairs(rows)));
  }
  return { stream, last: withSteps(frame("snapshot", seq, []), pairs(rows)) };
}

/** Neighbours of one parent become one row, but never the newest. */
function pairs(rows: number[][]): number[][] {
  const folded: number[][] = [];
  for (let at = 0; at < rows.length; at++) {
    const [one, two] = [rows[at]!, rows[at + 1]!];
    if (at + 2 >= rows.length || one[0] !== two[0]) {
      folded.push(one);
      continue;
    }
    const [parent, first, , start] = one;
    const sums = [5, 7, 8].map((column) => one[column]! + two[column]!);
    const [last, stop] = [two[2], two[4]];
    const worse = two[9]! > one[9]! ? two : one;
    const group = [parent, first, last, start, stop, sums[0], Math.max(one[6]!, two[6]!), sums[1], sums[2]];
    const lowest = Math.min(one[11]!, two[11]!);
    const phases = [15, 16, 17].map((column) => Math.max(one[column]!, two[column]!));
    folded.push([
      ...group,
      worse[9],
      worse[10],
      lowest,
      worse[12],
      worse[13],
      two[14],
      ...phases,
    ] as number[]);
    at++;
  }
  return folded;
}

function essence({ steps }: Store) {
  const rows = Array.from({ length: steps.length }, (_, row) => row);
  const memories = rows.map((row) => steps.memory(row, "cuda:0")!);
  const worst = memories.reduce((best, next) => (next.peak > best.peak ? next : best), memories[0]!);
  const tokens = rows.reduce((sum, row) => sum + steps.group(row).tokens, 0);
  const ends = rows.length > 0 && [steps.group(0).first, steps.group(rows.length - 1).last];
  const lowest = Math.min(...memories.map((memory) => memory.lowest));
  return { ends, tokens, lowest, worst: [worst?.peak, worst?.worst, worst?.worstTokens] };
}

function damage(stream: Frame[], next: () => number): Frame[] {
  const kept = stream.filter(() => next() > 0.3);
  const doubled = kept.flatMap((each) => (next() < 0.2 ? [each, each] : [each]));
  for (let index = doubled.length - 1; index > 0; index--) {
    if (next() > 0.4) continue;
    const other = Math.floor(next() * (index + 1));
    [doubled[index], doubled[other]] = [doubled[other]!, doubled[index]!];
  }
  return doubled;
}
