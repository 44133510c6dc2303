/** The figures of the watched cells and blocks by device, for the table of the last ones. */

import type { Finding } from "../../core/judged.ts";
import { findingsIn } from "../../core/notice.ts";
import { findPeak, type Peak } from "../../core/peak.ts";
import type { Schema, Span, SpanMemory } from "../../core/protocol.ts";
import type { Store } from "../../core/store.ts";

export const MOST_CELLS = 8;
const KINDS = new Set(["cell", "block"]);

export interface CellFacts {
  label: string;
  /** Seconds since the epoch. */
  startedAt: number;
  /** Seconds. */
  duration: number;
  open: boolean;
  outcome: string;
  devices: Record<string, SpanMemory>;
  /** Its findings, the most severe first. */
  findings: Finding[];
}

/** The outermost spans of a run. The overview of ranks has none, since the cell that started them is in the table. */
export function cellsOf(store: Store): CellFacts[] {
  const { schema, status } = store;
  if (schema === null || store.ranks !== null) return [];
  const cells = [...store.spans.values()].filter(({ kind, parent }) => parent === null && KINDS.has(kind));
  return cells.slice(-MOST_CELLS).map((span) => ({
    label: span.label,
    startedAt: schema.started_at + span.start,
    duration: Math.max(0, (span.stop ?? status?.elapsed ?? span.start) - span.start),
    open: span.stop === null && status?.state === "running" && !store.disconnected,
    outcome: span.outcome,
    devices: span.stop === null ? soFar(store, schema, span) : span.devices,
    findings: findingsIn(store, span),
  }));
}

/** An open span is sent when it opens and seldom after that: its peak is the highest sample since. */
function soFar(store: Store, schema: Schema, span: Span): CellFacts["devices"] {
  const devices = { ...span.devices };
  for (const { key } of schema.devices) {
    const known = devices[key] ?? { before: null, after: null, peak: null, certainty: "sampled" };
    const peak = peakSince(store, key, span.start);
    if (peak !== null && peak.bytes > (known.peak ?? 0)) {
      devices[key] = { ...known, peak: peak.bytes, certainty: peak.certainty };
    }
  }
  return devices;
}

function peakSince(store: Store, device: string, start: number): Omit<Peak, "time"> | null {
  const highest = findPeak(store, device);
  if (highest === null || highest.time >= start) return highest;
  const { timeline } = store;
  const column = timeline.columns[store.columnOf(device, "allocated")];
  const row = column?.highest(timeline.firstFrom(start), timeline.length) ?? -1;
  return row < 0 ? null : { bytes: column!.values[row]!, certainty: "sampled" };
}

/** Bytes left behind on a device; NaN while that is not known. */
export function changeOn(cell: CellFacts, device: string): number {
  const { before, after } = cell.devices[device] ?? {};
  return before == null || after == null ? Number.NaN : after - before;
}

/** The share of the highest peak within which another peak is as high, and below which a rise does not count. */
const AS_HIGH = 0.01;

/**
 * The cell that rose to the highest peak on a device, not one that only stays as high as an earlier one. Null if there
 * is only one cell, or none rose to it.
 */
export function worstOn(cells: CellFacts[], device: string): CellFacts | null {
  const peakOf = (cell: CellFacts) => cell.devices[device]?.peak ?? Number.NEGATIVE_INFINITY;
  const rivals = cells.filter((cell) => peakOf(cell) > 0);
  if (rivals.length < 2) return null;
  const highest = Math.max(...rivals.map(peakOf));
  const riseOf = (cell: CellFacts) => peakOf(cell) - (cell.devices[device]?.before ?? 0);
  const first = rivals
    .filter((cell) => peakOf(cell) >= (1 - AS_HIGH) * highest)
    .reduce((best, next) => (riseOf(next) > riseOf(best) ? next : best));
  return riseOf(first) >= AS_HIGH * highest ? first : null;
}
