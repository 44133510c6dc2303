import { describe, expect, test } from "vitest";
import { conditionOf } from "../src/core/condition.ts";
import { decode, decodeHistory } from "../src/core/protocol.ts";
import { Store } from "../src/core/store.ts";
import { cellsOf } from "../src/hosts/panel/cells.ts";
import { fullnessOf } from "../src/hosts/panel/fullness.ts";
import { openPath } from "../src/hosts/panel/path.ts";
import { frame, level, random, STATUS, span, stepRow, withSteps } from "./frames.ts";

function shifted(buffer: ArrayBuffer, offset: number): DataView {
  const bytes = new Uint8Array(buffer.byteLength + offset);
  bytes.set(new Uint8Array(buffer), offset);
  return new DataView(bytes.buffer, offset);
}

describe("decode", () => {
  test("buffers that start at any byte read the same", () => {
    const { content, buffers } = frame("rows", 1, [level(0.5, 7), level(0.6, 8)]);
    for (const offset of [0, 1, 3, 5]) {
      const views = buffers.map((buffer) => shifted(buffer as ArrayBuffer, offset));
      const message = decode(content, views);
      expect(message).toEqual(decode(content, buffers));
      expect(message).toMatchObject({ kind: "rows", rows: { columns: 6 } });
    }
  });

  test("a decoded row does not change when the frame's memory is used again", () => {
    const { content, buffers } = frame("rows", 1, [level(0.5, 7)]);
    const message = decode(content, buffers);
    new Uint8Array(buffers[0] as ArrayBuffer).fill(0);
    expect(message).toMatchObject({ rows: { time: Float64Array.of(0.5) } });
  });

  test("an unknown kind is ignored", () => {
    expect(decode({ kind: "later" }, [])).toBeNull();
    expect(decode(null, [])).toBeNull();
    expect(decode("rows", [])).toBeNull();
  });

  test("a frame whose lengths do not add up is ignored", () => {
    const { content, buffers } = frame("rows", 1, [level(0.5, 7), level(0.6, 8)]);
    expect(decode({ ...content, rows: 3 }, buffers)).toBeNull();
    expect(decode({ ...content, rows: -1 }, buffers)).toBeNull();
    expect(decode(content, [buffers[0]!])).toBeNull();
    expect(decode(content, [buffers[0]!, new ArrayBuffer(13)])).toBeNull();
  });

  test("a message without rows needs no buffers", () => {
    expect(decode({ ...frame("rows", 1, []).content }, [])).toMatchObject({ seq: 1, rows: { columns: 0 } });
  });

  test("another protocol is distinguished from a broken frame", () => {
    const { content, buffers } = frame("snapshot", 1, [level(0, 1)], { protocol: 2 });
    expect(decode(content, buffers)).toEqual({ kind: "unsupported", protocol: 2 });
  });

  test("steps come as a third buffer, and a message without any needs none", () => {
    const bare = frame("rows", 1, [level(0.5, 7)]);
    const { content, buffers } = withSteps(bare, [stepRow({ number: 1 }), stepRow({ number: 2 })]);
    expect(decode(content, buffers)).toMatchObject({ steps: { columns: 18 } });
    expect(decode(bare.content, bare.buffers)).toMatchObject({ steps: { columns: 0 } });
  });

  test("steps whose lengths do not add up make no message", () => {
    const { content, buffers } = withSteps(frame("rows", 1, [level(0.5, 7)]), [stepRow({ number: 1 })]);
    for (const steps of [-1, 0.5, 7, 1e300, Number.NaN, "many", {}]) {
      expect(decode({ ...content, steps }, buffers), String(steps)).toBeNull();
    }
    expect(decode(content, buffers.slice(0, 2))).toBeNull();
    expect(decode(content, [...buffers.slice(0, 2), new ArrayBuffer(13)])).toBeNull();
    expect(decode(content, [...buffers.slice(0, 2), new ArrayBuffer(0)])).toBeNull();
  });

  test("columns of steps that are no texts make no schema", () => {
    const { content, buffers } = withSteps(frame("snapshot", 1, [level(0.5, 7)]), [stepRow({ number: 1 })]);
    for (const columns of ["peak", [1, 2], {}]) {
      const schema = { ...(content.schema as object), step_columns: columns };
      expect(decode({ ...content, schema }, buffers)).toBeNull();
    }
  });

  test("no buffer of steps throws, whatever it holds", () => {
    const next = random(3);
    for (let attempt = 0; attempt < 300; attempt++) {
      const { content, buffers } = frame("rows", 1, [level(0.5, 7)]);
      const bytes = Uint8Array.from({ length: Math.floor(next() * 200) }, () => 256 * next());
      const steps = Math.floor(next() * 4);
      expect(() => decode({ ...content, steps }, [...buffers, bytes.buffer])).not.toThrow();
    }
  });

  test("the history trait carries its buffers inside", () => {
    const { content, buffers } = frame("snapshot", 4, [level(0, 1)]);
    const history = { ...content, time: buffers[0], values: shifted(buffers[1] as ArrayBuffer, 1) };
    expect(decodeHistory(history)).toEqual(decode(content, buffers));
    const told = withSteps({ content, buffers }, [stepRow({ number: 1 })]);
    const withRows = { ...told.content, time: buffers[0], values: buffers[1], step_rows: told.buffers[2] };
    expect(decodeHistory(withRows)).toEqual(decode(told.content, told.buffers));
    expect(decodeHistory({})).toBeNull();
    expect(decodeHistory(undefined)).toBeNull();
  });
});

describe("whatever comes", () => {
  /** An object of JSON that no conversion makes a number or a text of. */
  const STUBBORN = { toString: 1, valueOf: 2 };
  const HOSTILE = [null, true, -1, 0.5, 1e300, "", "7", [], {}, STUBBORN, [STUBBORN], [null], { a: null }];

  /** Replaces, or takes away, one entry anywhere in a message. */
  function spoil(content: unknown, next: () => number): unknown {
    const pick = <T>(from: readonly T[]): T => from[Math.floor(next() * from.length)]!;
    const copy = structuredClone(content) as Record<string, unknown>;
    let at: Record<string, unknown> = copy;
    for (;;) {
      const key = pick(Object.keys(at));
      const inner = at[key];
      const isFull = typeof inner === "object" && inner !== null && Object.keys(inner).length > 0;
      if (isFull && next() < 0.7) at = inner as Record<string, unknown>;
      else {
        if (next() < 0.1) delete at[key];
        else at[key] = pick(HOSTILE);
        return copy;
      }
    }
  }

  test("decode does not throw where a count cannot be made a number", () => {
    for (const name of ["rows", "steps", "protocol"]) {
      const { content, buffers } = frame("snapshot", 1, [level(0, 1)]);
      expect(() => decode({ ...content, [name]: STUBBORN }, buffers)).not.toThrow();
    }
  });

  test("a damaged message is ignored, or can be shown", () => {
    const next = random(14);
    const open = { ...span(2, 1, "block", 0, 0), stop: null };
    const more = { spans: [span(1, null, "cell", 0, 1), open], status: { ...STATUS, path: ["a", "b"] } };
    const whole = withSteps(frame("snapshot", 1, [level(0, 1), level(1, 2)], more), [stepRow({ number: 1 })]);
    const news = withSteps(frame("rows", 2, [level(2, 3)], more), [stepRow({ number: 2 })]);
    for (let turn = 0; turn < 6000; turn++) {
      const { content, buffers } = next() < 0.6 ? whole : news;
      let spoilt: unknown = content;
      for (let times = 1 + Math.floor(3 * next()); times > 0; times--) spoilt = spoil(spoilt, next);
      const some = next() < 0.2 ? buffers.slice(0, Math.floor(3 * next())) : buffers;
      const store = new Store(() => 0);
      const show = () => {
        store.apply(decode(whole.content, whole.buffers));
        store.apply(decode(spoilt, some));
        cellsOf(store);
        fullnessOf(store);
        openPath(store);
        conditionOf(store, 0);
      };
      expect(show, JSON.stringify(spoilt)).not.toThrow();
    }
  });
});
