/** The highest point of a run, by its most certain source. */

import { formatBytes, type Unit } from "./format.ts";
import type { Certainty } from "./protocol.ts";
import type { Store } from "./store.ts";

export interface Peak {
  time: number;
  bytes: number;
  certainty: Certainty;
}

/** Samples travel as float32: a reading above the exact peak by less than this share is the same, rounded. */
const ROUNDING = 1e-6;
/** A sample this near to the peak is as high: on a plateau, the peak is where it was first reached. */
const AS_HIGH = 0.99;

/**
 * The peak of the span or step with the highest peak, or the highest sample. It is marked at its highest sample; for a
 * cell, at the first sample of that height.
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

/** The height and the certainty of a peak, such as `6.99 GiB exact` or `≥ 6.99 GiB`. */
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

/** The shortest of spans and steps with the same peak, since it tells best where the peak was. */
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
