/**
 * What the panel knew before the page was reloaded.
 *
 * The kernel cannot be asked while a cell is busy, and after a long run its next snapshot may be minutes away: so
 * the page itself keeps, for the tab's lifetime, a coarse snapshot of each run and the table of cells.
 */

import { decimate } from "../../core/decimate.ts";
import { isPart } from "../../core/parts.ts";
import { decode, type Message, PROTOCOL, type Span } from "../../core/protocol.ts";
import { encodeRanks } from "../../core/ranks.ts";
import type { StepTable } from "../../core/steps.ts";
import type { Store } from "../../core/store.ts";
import type { CellFacts } from "./cells.ts";

/** Another version may have another form. */
const KEY = `hfmem-widget/${CHART_HASH}`;
const PIXELS = 250;
const MOST_SPANS = 200;
const MOST_STEPS = 400;
const MOST_KERNELS = 8;

/** A snapshot in the wire's own form, its buffers in base64. */
export interface Frame {
  content: object;
  buffers: string[];
  /** When something last came of a run whose kernel is gone, in milliseconds; null where it is not. */
  lostAt: number | null;
}

export interface Remembered {
  frames: Frame[];
  past: CellFacts[];
  /** As in `Runs`. */
  isLost: boolean;
}

/** By the kernel's id. */
export type Memory = Map<string, Remembered>;

export function loadMemory(storage: Storage): Memory {
  try {
    return new Map(JSON.parse(storage.getItem(KEY) ?? "[]") as [string, Remembered][]);
  } catch {
    return new Map();
  }
}

/** Where the browser has no room or no leave for it, the next snapshot brings the history. */
export function saveMemory(storage: Storage, memory: Memory): void {
  for (const kernel of [...memory.keys()].slice(0, -MOST_KERNELS)) memory.delete(kernel);
  try {
    storage.setItem(KEY, JSON.stringify([...memory]));
  } catch {
    storage.removeItem(KEY);
  }
}

/** Null for a run of which nothing can be shown yet. */
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

/** The parts of allocated memory go with it, so that they stand together again. */
function leadsIn(store: Store, columns: number[]): number[] {
  return columns.map((column) => {
    // Rows may have more columns than the schema that came last tells.
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
