/** The highest point of a run, as surely as it is known. */

import { formatBytes, type Unit } from "./format.ts";
import type { Certainty } from "./protocol.ts";
import type { Store } from "./store.ts";

export interface Peak {
  time: number;
  bytes: number;
  certainty: Certainty;
}

/** Samples travel as float32: a reading this much above the exact peak is the same reading, rounded. */
const ROUNDING = 1e-6;
/** What is this near the peak is as high: on a plateau the peak is where it was reached. */
const AS_HIGH = 0.99;

/**
 * The peak of the span or step that rose highest, marked where its samples are highest, that of a cell where samples
 * first came as high; or the highest sample.
 */
export function findPeak(store: Store, device: string): Peak | null {
  const { timeline } = store;
  const column = timeline.columns[store.columnOf(device, "allocated")];
  const known = highestStretch(store, device);
  const top = column ? column.highest(0, timeline.length) : -1;
  const sampled = top < 0 ? Number.NEGATIVE_INFINITY : column!.values[top]!;
  if (known === null || sampled > known.bytes * (1 + ROUNDING)) {
    return top < 0 ? null : { time: timeline.time[top]!, bytes: sampled, certainty: "sampled" };
  }
  const from = timeline.firstFrom(known.start);
  const to = timeline.firstAfter(known.stop);
  let row = column ? column.highest(from, to) : -1;
  for (let earlier = 0; known.isCell && earlier < row; earlier++) {
    if (column!.values[earlier]! >= AS_HIGH * known.bytes) row = earlier;
  }
  const time = row < 0 ? (known.start + known.stop) / 2 : timeline.time[row]!;
  return { time, bytes: known.bytes, certainty: known.certainty };
}

/** How high a peak is and how that is known, such as `6.99 GiB exact` or `≥ 6.99 GiB`. */
export function peakText(bytes: number, certainty: Certainty, unit?: Unit): string {
  const figure = formatBytes(bytes, unit);
  if (!Number.isFinite(bytes)) return figure;
  return certainty === "at least" ? `≥ ${figure}` : `${figure} ${certainty}`;
}

interface Stretch {
  start: number;
  stop: number;
  bytes: number;
  certainty: Certainty;
  isCell: boolean;
}

/** Of spans and steps with the same peak the shortest tells best where it was. */
function highestStretch(store: Store, device: string): Stretch | null {
  let best: Stretch | null = null;
  for (const next of stretches(store, device)) {
    const isTighter = best?.bytes === next.bytes && next.stop - next.start < best.stop - best.start;
    if (best === null || next.bytes > best.bytes || isTighter) best = next;
  }
  return best;
}

function* stretches({ spans, steps, status, timeline }: Store, device: string): Iterable<Stretch> {
  const now = status?.elapsed ?? timeline.last;
  for (const { start, stop, parent, devices } of spans.values()) {
    const memory = devices[device];
    if (memory?.peak == null) continue;
    const { peak: bytes, certainty } = memory;
    yield { start, stop: stop ?? Math.max(now, start), bytes, certainty, isCell: parent === null };
  }
  const highest = steps.highest(device);
  if (highest < 0) return;
  const { peak: bytes, certainty } = steps.memory(highest, device)!;
  const { start, stop } = steps.group(highest);
  yield { start, stop, bytes, certainty, isCell: false };
}
