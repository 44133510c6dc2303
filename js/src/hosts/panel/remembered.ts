/**
 * The panel's data from before a page reload.
 *
 * The kernel cannot be asked while a cell is busy, and its next snapshot may be minutes away in a long run. So the
 * page keeps a coarse snapshot of each run, and the table of cells, for the lifetime of the tab.
 */

import { decimate } from "../../core/decimate.ts";
import { isPart } from "../../core/parts.ts";
import { decode, type Message, PROTOCOL, type Span } from "../../core/protocol.ts";
import { encodeRanks } from "../../core/ranks.ts";
import type { StepTable } from "../../core/steps.ts";
import type { Store } from "../../core/store.ts";
import type { CellFacts } from "./cells.ts";

/** Other versions may store another form. */
const KEY = `hfmem-widget/${CHART_HASH}`;
const PIXELS = 250;
const MOST_SPANS = 200;
const MOST_STEPS = 400;
const MOST_KERNELS = 8;

/** A snapshot in the form of the wire, its buffers in Base64. */
export interface Frame {
  content: object;
  buffers: string[];
  /** The time of the last message of a run whose kernel is gone, in milliseconds; null otherwise. */
  lostAt: number | null;
}

export interface Remembered {
  frames: Frame[];
  past: CellFacts[];
  /** As in `Runs`. */
  isLost: boolean;
}

/** By kernel id. */
export type Memory = Map<string, Remembered>;

export function loadMemory(storage: Storage): Memory {
  try {
    return new Map(JSON.parse(storage.getItem(KEY) ?? "[]") as [string, Remembered][]);
  } catch {
    return new Map();
  }
}

/** If the browser has no room for it, or does not allow it, the next snapshot restores the history. */
export function saveMemory(storage: Storage, memory: Memory): void {
  for (const kernel of [...memory.keys()].slice(0, -MOST_KERNELS)) memory.delete(kernel);
  try {
    storage.setItem(KEY, JSON.stringify([...memory]));
  } catch {
    storage.removeItem(KEY);
  }
}

/** Null for a run without data to show. */
export function toFrame(store: Store): Frame | null {
  const { schema, status, timeline, run, seq, findings, guides, ranks, heardAt, disconnected } = store;
  if (schema === null) return null;
  const columns = timeline.columns.map((_, index) => index);
  const { x, y } = decimate(timeline, columns, [0, timeline.last], PIXELS, {
    leads: leadsIn(store, columns),
  });
  const values = new Float32Array(x.length * columns.length);
  y.forEach((column, index) => {
    for (let row = 0; row < x.length; row++) values[row * columns.length + index] = column[row]!;
  });
  const steps = newestSteps(store.steps, schema.step_columns ?? []);
  const envelope = { kind: "snapshot", protocol: PROTOCOL, run, seq, rows: x.length, steps: steps.count };
  return {
    content: {
      ...envelope,
      ...{ schema, status, findings, guides },
      spans: worthKeeping([...store.spans.values()]),
      ...(ranks === null ? {} : { ranks: encodeRanks(ranks) }),
    },
    buffers: [x, values, steps.figures, ...(ranks === null ? [] : [ranks.strip.cells])].map(toBase64),
    lostAt: disconnected ? heardAt : null,
  };
}

export function fromFrame({ content, buffers }: Frame): Message | null {
  try {
    return decode(content, buffers.map(fromBase64));
  } catch {
    return null;
  }
}

/** The parts of allocated memory are stored too, so that the stack can be drawn again. */
function leadsIn(store: Store, columns: number[]): number[] {
  return columns.map((column) => {
    // Rows may have more columns than the newest schema.
    const series = store.schema?.series[column];
    return series && isPart(series.metric) ? store.columnOf(series.device, "allocated") : column;
  });
}

function newestSteps(steps: StepTable, names: string[]): { count: number; figures: Float64Array } {
  const count = Math.min(steps.length, MOST_STEPS);
  const figures = new Float64Array(count * names.length);
  for (let row = 0; row < count; row++) {
    names.forEach((name, place) => {
      figures[row * names.length + place] = steps.at(steps.length - count + row, name);
    });
  }
  return { count, figures };
}

function worthKeeping(spans: Span[]): Span[] {
  const outer = spans.slice(0, -MOST_SPANS).filter(({ parent, stop }) => parent === null || stop === null);
  return [...outer.slice(-MOST_SPANS), ...spans.slice(-MOST_SPANS)];
}

function toBase64(array: Float64Array | Float32Array | Uint8Array): string {
  const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}

function fromBase64(text: string): Uint8Array {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}
