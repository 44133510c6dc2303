import { describe, expect, test } from "vitest";
import { readPace } from "../src/core/pace.ts";
import { paceTexts } from "../src/core/progress.ts";
import type { Span } from "../src/core/protocol.ts";
import { Store } from "../src/core/store.ts";
import { message, STATUS, type Step, span, stepRow, tableOf } from "./frames.ts";

interface Training {
  steps: Partial<Step>[];
  total?: number;
  spans?: Span[];
  elapsed?: number;
  over?: boolean;
  state?: string;
}

/** A training whose steps lie in its first epoch. */
function training({
  steps,
  total = 100,
  spans = [],
  elapsed,
  over = false,
  state = "running",
}: Training): Store {
  const store = new Store(Date.now);
  const rows = steps.map((step, index) => stepRow({ number: index + 1, parent: 2, ...step }));
  const now = elapsed ?? rows.at(-1)?.[4] ?? 0;
  const train = { ...span(1, null, "train", 0, now), stop: over ? now : null, counts: { steps: total } };
  const epoch = { ...span(2, 1, "epoch", 0, now), stop: null };
  store.apply(
    message("snapshot", 0, [], {
      spans: [train, epoch, ...spans],
      status: { ...STATUS, state, elapsed: now },
    }),
  );
  store.steps = tableOf(rows);
  return store;
}

function steady(count: number, seconds = 1, from = 0): Partial<Step>[] {
  return Array.from({ length: count }, (_, index) => ({
    number: index + 1,
    start: from + index * seconds,
    stop: from + (index + 1) * seconds,
  }));
}

describe("readPace", () => {
  test("before the first step there is nothing to say", () => {
    expect(readPace(training({ steps: [] }))).toBeNull();
  });

  test("there is no speed until it is steady, and the first step does not count", () => {
    expect(readPace(training({ steps: steady(5) }))).toMatchObject({ number: 5, steps: null, left: null });
    expect(readPace(training({ steps: steady(6) }))).toMatchObject({
      number: 6,
      steps: 1,
      tokens: 100,
      left: 94,
    });
    const slowFirst = [
      { number: 1, start: 0, stop: 50 },
      ...steady(5, 1, 50).map((step, i) => ({ ...step, number: i + 2 })),
    ];
    expect(readPace(training({ steps: slowFirst }))!.steps).toBe(1);
  });

  test("slow steps need only two", () => {
    expect(readPace(training({ steps: steady(3, 15) }))!.steps).toBeCloseTo(1 / 15);
  });

  test("the speed is that of the newest steps", () => {
    const steps = [...steady(40, 1), ...steady(30, 0.5, 40).map((step, i) => ({ ...step, number: 41 + i }))];
    expect(readPace(training({ steps }))!.steps).toBe(2);
  });

  test("an evaluation does not count in the speed, but in the remaining time", () => {
    const steps = [...steady(10, 1), ...steady(10, 1, 20).map((step, i) => ({ ...step, number: 11 + i }))];
    const spans = [span(3, 1, "evaluate", 10, 20), span(4, 3, "save", 15, 18)];
    const pace = readPace(training({ steps, spans, total: 60 }))!;
    expect(pace.steps).toBe(1);
    expect(pace.left).toBeCloseTo(40 * (1 + 10 / 20));
  });

  test("the begun part of the next step is subtracted from the remaining time", () => {
    const pace = readPace(training({ steps: steady(20, 1), elapsed: 20.75 }))!;
    expect(pace.left).toBeCloseTo(80 - 0.75);
  });

  test("a training that is over has its average and nothing left", () => {
    const steps = [...steady(10, 1), ...steady(10, 3, 10).map((step, i) => ({ ...step, number: 11 + i }))];
    for (const how of [{ over: true }, { state: "stopped" }]) {
      const pace = readPace(training({ steps, total: 20, ...how }));
      expect(pace).toMatchObject({ isOver: true, steps: 0.5, count: 20, left: null });
    }
  });

  test("a second training starts afresh", () => {
    const store = training({ steps: steady(20, 1) });
    const again = { ...span(5, null, "train", 20, 99), stop: null, counts: { steps: 30 } };
    store.apply(message("rows", 1, [], { spans: [again] }));
    const second = steady(8, 0.5, 20).map((step, i) => stepRow({ ...step, number: i + 1, parent: 5 }));
    store.steps.append({ values: Float64Array.from(second.flat()), columns: second[0]!.length });
    expect(readPace(store)).toMatchObject({ number: 8, count: 8, total: 30, steps: 2 });
  });

  test("a resumed training counts from where it is", () => {
    const steps = steady(10).map((step) => ({ ...step, number: step.number! + 50 }));
    expect(readPace(training({ steps }))).toMatchObject({ number: 60, count: 10, left: 40 });
  });

  test("steps whose tokens are not known have no tokens a second", () => {
    const steps = steady(10).map((step) => ({ ...step, tokens: Number.NaN }));
    expect(readPace(training({ steps }))).toMatchObject({ steps: 1, tokens: null });
  });

  test("in a loop of one's own the rate ends when the steps do, though their cell goes on", () => {
    const store = new Store(Date.now);
    const cell = { ...span(2, null, "cell", 0, 1), stop: null };
    store.apply(message("snapshot", 0, [], { spans: [cell], status: { ...STATUS, elapsed: 12 } }));
    store.steps = tableOf(steady(10).map((step) => stepRow({ number: 1, ...step, parent: 2 })));
    expect(readPace(store)).toMatchObject({ isOver: false, steps: 1 });
    store.apply(message("rows", 1, [], { status: { ...STATUS, elapsed: 100 } }));
    expect(readPace(store)).toMatchObject({ isOver: true });
  });

  test("steps of no training are over when none has come for a while", () => {
    const store = new Store(Date.now);
    store.steps = tableOf(steady(10).map((step) => stepRow({ number: 1, ...step, parent: 0 })));
    for (const [elapsed, isOver] of [
      [12, false],
      [100, true],
    ] as const) {
      store.apply(
        message(elapsed === 12 ? "snapshot" : "rows", elapsed, [], { status: { ...STATUS, elapsed } }),
      );
      store.steps = tableOf(steady(10).map((step) => stepRow({ number: 1, ...step, parent: 0 })));
      expect(readPace(store)).toMatchObject({ isOver, total: null, left: null });
    }
  });
});

describe("paceTexts", () => {
  const pace = { number: 17, total: 100, count: 17, steps: 4.2345, tokens: 8617, left: 19.6, isOver: false };

  test("progress, remaining time, speed", () => {
    expect(paceTexts(pace)).toEqual(["step 17 of 100", "about 20 s left", "4.2 steps/s", "8,600 tokens/s"]);
  });

  test("unknown figures are left out", () => {
    expect(paceTexts({ ...pace, total: null, steps: null, tokens: null, left: null })).toEqual(["step 17"]);
  });

  test("numbers of steps read as on the card", () => {
    const long = { ...pace, number: 5999, total: 6000, count: 6000 };
    expect(paceTexts(long)[0]).toBe("step 5,999 of 6,000");
    expect(paceTexts({ ...long, isOver: true })[0]).toBe("6,000 steps");
  });

  test("after the end it has the speed of all steps, and their time", () => {
    const over = { ...pace, left: null, isOver: true };
    expect(paceTexts(over)).toEqual([
      "17 steps",
      "4.2 steps/s",
      "8,600 tokens/s including the time between steps",
    ]);
    expect(paceTexts({ ...over, tokens: null })).toEqual([
      "17 steps",
      "4.2 steps/s including the time between steps",
    ]);
  });

  test("a step of more than a second is given by its duration", () => {
    expect(paceTexts({ ...pace, steps: 0.071 })[2]).toBe("14 s/step");
    expect(paceTexts({ ...pace, steps: 123.4 })[2]).toBe("120 steps/s");
  });

  test("the remaining time is rounded as coarsely as it is known", () => {
    const texts = [3, 12, 57.4, 58, 200, 1500, 3570, 3580, 24_000].map(
      (left) => paceTexts({ ...pace, left })[1],
    );
    expect(texts).toEqual([
      "a few seconds left",
      "about 10 s left",
      "about 55 s left",
      "about 1 min left",
      "about 3 min left",
      "about 25 min left",
      "about 1 h 00 left",
      "about 1 h 00 left",
      "about 6 h 40 left",
    ]);
  });
});
