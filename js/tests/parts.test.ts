import { describe, expect, test } from "vitest";
import { keptOn, type PartName, partsOf, STACK, shownParts } from "../src/core/parts.ts";
import type { Span } from "../src/core/protocol.ts";
import { stackOf } from "../src/core/stack.ts";
import { Store } from "../src/core/store.ts";
import { message, random, span } from "./frames.ts";

const NONE = Object.fromEntries(STACK.map((name) => [name, 0])) as Record<PartName, number>;

function parts(allocated: number, known: Partial<Record<PartName, number>>) {
  return partsOf(allocated, (metric) => known[metric] ?? Number.NaN);
}

describe("partsOf", () => {
  test("within a step, bytes unexplained at its beginning are not attributed, and the rest are activations", () => {
    const known = { weights: 10, buffers: 1, optimizer: 20, gradients: 5, unattributed: 4 };
    expect(parts(60, known)).toEqual({ ...NONE, ...known, activations: 20 });
  });

  test("outside of steps nothing is called an activation", () => {
    expect(parts(60, { weights: 10 })).toEqual({ ...NONE, weights: 10, unattributed: 50 });
  });

  test("unattributed bytes may have been freed since", () => {
    expect(parts(12, { weights: 10, unattributed: 4 })).toEqual({ ...NONE, weights: 10, unattributed: 2 });
  });

  test("if known parts exceed allocated memory, the uppermost are cut", () => {
    const known = { weights: 10, buffers: 1, optimizer: 20, gradients: 5, unattributed: 4 };
    expect(parts(25, known)).toEqual({ ...NONE, weights: 10, buffers: 1, optimizer: 14 });
  });

  test("unknown parts are zero", () => {
    expect(parts(Number.NaN, { weights: 10 })).toEqual(NONE);
    expect(parts(0, { weights: -3 })).toEqual(NONE);
  });

  test("whatever is read, the parts add up to allocated memory", () => {
    const next = random(7);
    const reading = () => (next() < 0.2 ? Number.NaN : Math.floor(100 * next()));
    for (let trial = 0; trial < 500; trial++) {
      const allocated = Math.floor(150 * next());
      const found = partsOf(allocated, reading);
      const sum = STACK.reduce((all, name) => all + found[name], 0);
      expect(sum).toBe(allocated);
      expect(Math.min(...Object.values(found))).toBeGreaterThanOrEqual(0);
    }
  });
});

describe("shownParts", () => {
  test("names the present parts from the bottom up, without remainders of rounding", () => {
    const found = parts(64 * 2 ** 30, { weights: 2 ** 34, optimizer: 3 * 2 ** 34 - 8192, unattributed: 0 });
    expect(found.activations).toBe(8192);
    expect(shownParts(found)).toEqual(["weights", "optimizer"]);
    expect(shownParts(NONE)).toEqual([]);
  });
});

describe("keptOn", () => {
  const kept: [number, number][] = [
    [1, 0],
    [3, 40],
  ];
  const storeOf = (...spans: Span[]) => {
    const store = new Store(Date.now);
    const finding = { kind: "leak", severity: "warn", title: "held", span: 1, device: "cuda:0", kept };
    store.apply(message("snapshot", 0, [], { spans, findings: [finding] }));
    return store;
  };

  test("what names keep rises from one point to the next, and stays until the next cell begins", () => {
    const store = storeOf(span(1, null, "cell", 0, 3), span(2, null, "cell", 6, 9));
    const at = keptOn(store, "cuda:0");
    expect([0, 1, 2, 3, 5.9, 6].map(at)).toEqual([0, 0, 20, 40, 40, 0]);
    expect(keptOn(store, "cpu")(2)).toBe(0);
  });

  test("it is a part of what is not attributed, and of nothing else", () => {
    const known = { weights: 10, unattributed: 15 };
    expect(parts(60, { ...known, kept: 9 })).toEqual({
      ...NONE,
      ...known,
      unattributed: 6,
      kept: 9,
      activations: 35,
    });
    expect(parts(60, { ...known, kept: 90 })).toMatchObject({ unattributed: 0, kept: 15, activations: 35 });
  });
});

describe("stackOf", () => {
  const allocated = Float32Array.of(30, 60, Number.NaN, 20);
  const read = {
    weights: Float32Array.of(10, 10, Number.NaN, 10),
    gradients: Float32Array.of(0, 5, Number.NaN, Number.NaN),
    unattributed: Float32Array.of(4, 4, Number.NaN, Number.NaN),
  };

  test("each band is on the one below, and the last ends at allocated memory", () => {
    const bands = stackOf(allocated, read).map(({ part, top, thickest }) => ({
      part,
      top: [...top],
      thickest,
    }));
    expect(bands).toEqual([
      { part: "weights", top: [10, 10, Number.NaN, 10], thickest: 10 },
      { part: "gradients", top: [10, 15, Number.NaN, 10], thickest: 5 },
      { part: "unattributed", top: [14, 19, Number.NaN, 20], thickest: 10 },
      { part: "activations", top: [30, 60, Number.NaN, 20], thickest: 41 },
    ]);
  });

  test("rounding of sums raises no band above allocated memory", () => {
    const next = random(9);
    const values = () => Float32Array.from({ length: 2000 }, () => 1e11 * next());
    const tops = stackOf(values(), {
      weights: values(),
      buffers: values(),
      unattributed: values(),
    });
    for (let index = 0; index < 2000; index++) {
      const at = tops.map(({ top }) => top[index]!);
      expect(at).toEqual(at.toSorted((a, b) => a - b));
    }
  });

  test("an empty part has no band", () => {
    expect(stackOf(new Float32Array(3), {})).toEqual([]);
  });
});
