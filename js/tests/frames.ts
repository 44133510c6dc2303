/** Frames for tests, in the shape in which they leave Python. */

import { type BufferLike, decode, type Message, type Span } from "../src/core/protocol.ts";
import { StepTable } from "../src/core/steps.ts";

export const SCHEMA = {
  label: "test",
  started_at: 0,
  devices: [
    { key: "cuda:0", name: "GPU", total: 1000 },
    { key: "cpu", name: "host", total: null },
  ],
  series: ["cuda:0", "cpu"].flatMap((device) =>
    ["allocated", "reserved", "device_used"].map((metric) => ({
      device,
      metric,
      label: metric,
    })),
  ),
};

/** The columns that `cuda:0` has besides those of `SCHEMA`, in the order in which `partRow` gives them. */
const PARTS = ["weights", "buffers", "gradients", "optimizer", "unattributed", "context"];

export const PARTS_SCHEMA = {
  ...SCHEMA,
  series: [...SCHEMA.series, ...PARTS.map((metric) => ({ device: "cuda:0", metric }))],
};

export const STATUS = { state: "running", elapsed: 1, interval: 0.1, missed: 0, cost: null, text: "" };

export interface Frame {
  content: Record<string, unknown>;
  buffers: BufferLike[];
}

export const STEP_COLUMNS = [
  ..."parent first last start stop samples longest tokens content_tokens".split(" "),
  ..."peak certainty lowest worst worst_tokens after forward backward optimizer"
    .split(" ")
    .map((figure) => `cuda:0/${figure}`),
];

/** What a step did, as far as a test cares; a step takes a second, and ends at its number. */
export interface Step {
  number: number;
  parent?: number;
  start?: number;
  stop?: number;
  tokens?: number;
  peak?: number;
  isSampled?: boolean;
}

/** A row of `STEP_COLUMNS`. */
export function stepRow(step: Step): number[] {
  const { number, parent = 1, start = number - 1, stop = number, tokens = 100, peak = 10 } = step;
  const group = [parent, number, number, start, stop, 4, tokens / 4, tokens, tokens - 1];
  return [...group, peak, step.isSampled ? 2 : 0, peak, number, tokens, 5, peak - 2, peak - 1, 6];
}

/** What a message has more where it tells steps. */
export function withSteps({ content, buffers }: Frame, rows: number[][]): Frame {
  const schema = "schema" in content ? { schema: { ...SCHEMA, step_columns: STEP_COLUMNS } } : {};
  return {
    content: { ...content, steps: rows.length, ...schema },
    buffers: [...buffers, Float64Array.from(rows.flat()).buffer],
  };
}

export function tableOf(rows: number[][], columns = STEP_COLUMNS): StepTable {
  const table = new StepTable();
  table.adopt(columns);
  table.append({ values: Float64Array.from(rows.flat()), columns: columns.length });
  return table;
}

type Row = [time: number, ...values: number[]];

export function frame(kind: "rows" | "snapshot", seq: number, rows: Row[], more: object = {}): Frame {
  const time = Float64Array.from(rows, (row) => row[0]);
  const values = Float32Array.from(rows.flatMap((row) => row.slice(1)));
  const extra = kind === "snapshot" ? { protocol: 1, schema: SCHEMA } : {};
  const content = { kind, run: "a", seq, rows: rows.length, spans: [], status: STATUS, ...extra, ...more };
  return { content, buffers: [time.buffer, values.buffer] };
}

export function message(...parameters: Parameters<typeof frame>): Message {
  const { content, buffers } = frame(...parameters);
  return decode(content, buffers)!;
}

/** A row in which every series reads `value`. */
export function level(time: number, value: number): Row {
  return [time, ...SCHEMA.series.map(() => value)];
}

/** A row of cuda:0 with what is known of it: by default of a step whose gradients have come. */
export function partRow(time: number, allocated: number, more: object = {}): Row {
  const known = {
    weights: 10,
    buffers: 1,
    gradients: 10,
    optimizer: 20,
    unattributed: 2,
    context: 5,
    ...more,
  };
  return [time, allocated, 80, 90, 1, 1, 1, ...Object.values<number>(known)];
}

export function span(
  id: number,
  parent: number | null,
  kind: string,
  start: number,
  stop: number,
  peak = 1,
): Span {
  const memory = { before: 0, after: 0, peak, certainty: "exact" as const };
  return {
    id,
    parent,
    kind,
    label: `${kind} ${id}`,
    start,
    stop,
    outcome: "done",
    devices: { "cuda:0": memory },
  };
}

/** mulberry32: the same numbers in every run of the tests. */
export function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}
