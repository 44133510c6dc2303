/**
 * The reader of the wire: docs/wire.md describes it, `view/wire/protocol.py` writes it. No other module knows its
 * names.
 */

import { decodeFindings, decodeGuides, type Finding, type Guide } from "./judged.ts";
import { decodeRanks, type Ranks } from "./ranks.ts";

export const PROTOCOL = 1;

export type Certainty = "exact" | "at least" | "sampled";
export type State = "running" | "stopped" | "failed";

export interface Device {
  key: string;
  name: string;
  total: number | null;
  /** Whether it uses the machine's memory, as the CPU does; absent for a device with its own memory. */
  shared?: boolean;
}

export interface Series {
  device: string;
  metric: string;
  /** Absent if the page has a label for the metric. */
  label?: string;
}

export interface Schema {
  label: string;
  started_at: number;
  /** Whether JupyterLab's panel may open by itself; absent from older kernels. */
  panel?: boolean;
  devices: Device[];
  series: Series[];
  /** Absent before the first step. */
  step_columns?: string[];
}

/** A span's effect on one device, in bytes of allocated memory. */
export interface SpanMemory {
  before: number | null;
  after: number | null;
  peak: number | null;
  certainty: Certainty;
}

export interface Span {
  id: number;
  parent: number | null;
  kind: string;
  label: string;
  start: number;
  stop: number | null;
  outcome: string;
  devices: Record<string, SpanMemory>;
  /** Counts of the span, such as the `steps` of a whole training; absent if there are none. */
  counts?: Record<string, number | null>;
}

export interface Status {
  state: State;
  elapsed: number;
  interval: number;
  missed: number;
  cost: number | null;
  text: string;
  /** The open spans, outermost first; absent if there are none. */
  path?: string[];
  /** The use of devices by other processes; absent if this process used one. */
  lead?: string;
  /** A sentence on what is measured on some steps only; absent if every step is measured. */
  limited?: string;
}

/** `time` in seconds since the session began; `values` in bytes, row-major, `columns` to a row. */
export interface Rows {
  time: Float64Array;
  values: Float32Array;
  columns: number;
}

/** Finished steps, row-major, `columns` figures to a row, named by `Schema.step_columns`. */
export interface StepRows {
  values: Float64Array;
  columns: number;
}

interface Envelope {
  run: string;
  seq: number;
  rows: Rows;
  steps: StepRows;
  spans: Span[];
  status: Status | null;
  /** All present ones; null if the message does not have them. */
  findings: Finding[] | null;
  guides: Guide[] | null;
  /** The state of all ranks of a run; null if the message does not have it. */
  ranks: Ranks | null;
}

export interface RowsMessage extends Envelope {
  kind: "rows";
}

export interface SnapshotMessage extends Envelope {
  kind: "snapshot";
  schema: Schema;
  /** Only for pages with a gap, until a full snapshot comes. */
  coarse: boolean;
}

export interface UnsupportedMessage {
  kind: "unsupported";
  protocol: number;
}

export type Message = RowsMessage | SnapshotMessage | UnsupportedMessage;

export type BufferLike = ArrayBufferLike | ArrayBufferView;

type Check = (value: unknown) => boolean;

const isText = (value: unknown): value is string => typeof value === "string";
const isNumber = (value: unknown): value is number => typeof value === "number";
const isFlag: Check = (value) => typeof value === "boolean";
const isNumberOrNull: Check = (value) => value === null || isNumber(value);
const maybe = (check: Check) => (value: unknown) => value === undefined || check(value);
const listOf = (check: Check) => (value: unknown) => Array.isArray(value) && value.every(check);
const isCount = (value: unknown): value is number => isNumber(value) && Number.isInteger(value) && value >= 0;
const recordOf = (check: Check) => (value: unknown) => isRecord(value) && Object.values(value).every(check);

const isDevice = shape<Device>({
  key: isText,
  name: isText,
  total: isNumberOrNull,
  shared: maybe(isFlag),
});
const isSeries = shape<Series>({ device: isText, metric: isText, label: maybe(isText) });
const isSchema = shape<Schema>({
  label: isText,
  started_at: isNumber,
  panel: maybe(isFlag),
  devices: listOf(isDevice),
  series: listOf(isSeries),
  step_columns: maybe(listOf(isText)),
});
const isMemory = shape<SpanMemory>({
  before: isNumberOrNull,
  after: isNumberOrNull,
  peak: isNumberOrNull,
  certainty: isText,
});
const isSpan = shape<Span>({
  id: isNumber,
  parent: isNumberOrNull,
  kind: isText,
  label: isText,
  start: isNumber,
  stop: isNumberOrNull,
  outcome: isText,
  devices: recordOf(isMemory),
  counts: maybe(recordOf(isNumberOrNull)),
});
const isStatus = shape<Status>({
  state: isText,
  elapsed: isNumber,
  interval: isNumber,
  missed: isNumber,
  cost: isNumberOrNull,
  text: isText,
  path: maybe(listOf(isText)),
  lead: maybe(isText),
  limited: maybe(isText),
});

/** Returns the message, or null for an unknown kind or a malformed frame. Never throws. */
export function decode(content: unknown, buffers: ArrayLike<BufferLike>): Message | null {
  if (!isRecord(content)) return null;
  const { kind } = content;
  if (kind !== "rows" && kind !== "snapshot") return null;
  if (kind === "snapshot" && content.protocol !== PROTOCOL) {
    return { kind: "unsupported", protocol: isNumber(content.protocol) ? content.protocol : Number.NaN };
  }
  if (!isText(content.run) || !isNumber(content.seq)) return null;
  const rows = decodeRows(content.rows, buffers[0], buffers[1]);
  const steps = decodeSteps(content.steps ?? 0, buffers[2]);
  if (rows === null || steps === null) return null;
  const ranks = content.ranks === undefined ? null : decodeRanks(content.ranks, stripOf(buffers));
  const envelope = {
    run: content.run,
    seq: content.seq,
    rows,
    steps,
    spans: Array.isArray(content.spans) ? content.spans.filter(isSpan) : [],
    status: isStatus(content.status) ? content.status : null,
    findings: content.findings === undefined ? null : decodeFindings(content.findings),
    guides: content.guides === undefined ? null : decodeGuides(content.guides),
    ranks,
  };
  if (kind === "rows") return { kind, ...envelope };
  if (!isSchema(content.schema)) return null;
  // Fields that a snapshot leaves out are empty.
  const { findings, guides } = envelope;
  const whole = { ...envelope, findings: findings ?? [], guides: guides ?? [] };
  return { kind, ...whole, schema: content.schema, coarse: content.coarse === true };
}

/** Reads the `_history` trait: a snapshot with its buffers inside. */
export function decodeHistory(history: unknown): Message | null {
  if (!isRecord(history)) return null;
  const { time, values, step_rows: steps, strip } = history;
  if (!isBuffer(time) || !isBuffer(values)) return null;
  return decode(history, [time, values, ...[steps, strip].filter(isBuffer)]);
}

function decodeRows(count: unknown, time?: BufferLike, values?: BufferLike): Rows | null {
  if (!isCount(count)) return null;
  if (count === 0) return { time: new Float64Array(0), values: new Float32Array(0), columns: 0 };
  if (time === undefined || values === undefined) return null;
  const timeBytes = copyOf(time);
  const valueBytes = copyOf(values);
  const columns = valueBytes.byteLength / (4 * count);
  if (timeBytes.byteLength !== 8 * count || !Number.isInteger(columns)) return null;
  return { time: new Float64Array(timeBytes), values: new Float32Array(valueBytes), columns };
}

function decodeSteps(count: unknown, figures?: BufferLike): StepRows | null {
  if (!isCount(count)) return null;
  if (count === 0) return { values: new Float64Array(0), columns: 0 };
  if (figures === undefined) return null;
  const columns = figures.byteLength / (8 * count);
  if (!Number.isInteger(columns) || columns === 0) return null;
  return { values: new Float64Array(copyOf(figures)), columns };
}

/** The cells of the ranks' strip are the last buffer. */
function stripOf(buffers: ArrayLike<BufferLike>): Uint8Array {
  return buffers.length < 3 ? new Uint8Array(0) : new Uint8Array(copyOf(buffers[buffers.length - 1]!));
}

/** A copy, since a frame's buffers may begin at any byte of the message, and typed arrays must be aligned. */
function copyOf(buffer: BufferLike): ArrayBuffer {
  const view = ArrayBuffer.isView(buffer)
    ? new Uint8Array(buffer.buffer, buffer.byteOffset, buffer.byteLength)
    : new Uint8Array(buffer);
  return view.slice().buffer;
}

function isBuffer(value: unknown): value is BufferLike {
  return ArrayBuffer.isView(value) || value instanceof ArrayBuffer;
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null;
}

/** A check for each field of a type; the compiler reports a missing one. */
function shape<T>(checks: { [Name in keyof T]-?: Check }): (value: unknown) => value is T {
  const fields = Object.entries<Check>(checks);
  return (value): value is T => isRecord(value) && fields.every(([name, check]) => check(value[name]));
}
