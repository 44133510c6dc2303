/** The highest point of a run, as surely as it is known. */

import type { Certainty } from "./protocol.ts";
import type { Store } from "./store.ts";

export interface Peak {
  time: number;
  bytes: number;
  certainty: Certainty;
}

/** Samples travel as float32: a reading this much above the exact peak is the same reading, rounded. */
const ROUNDING = 1e-6;

/** The peak of the span that rose highest, marked where its samples are highest; or the highest sample. */
export function findPeak(store: Store, device: string): Peak | null {
  const { timeline } = store;
  const column = timeline.columns[store.columnOf(device, "allocated")];
  const known = highestSpan(store, device);
  const top = column ? column.highest(0, timeline.length) : -1;
  const sampled = top < 0 ? Number.NEGATIVE_INFINITY : column!.values[top]!;
  if (known === null || sampled > known.bytes * (1 + ROUNDING)) {
    return top < 0 ? null : { time: timeline.time[top]!, bytes: sampled, certainty: "sampled" };
  }
  const from = timeline.firstFrom(known.start);
  const to = timeline.firstAfter(known.stop);
  const row = column ? column.highest(from, to) : -1;
  const time = row < 0 ? (known.start + known.stop) / 2 : timeline.time[row]!;
  return { time, bytes: known.bytes, certainty: known.certainty };
}

/** Of spans with the same peak the shortest tells best where it was. */
function highestSpan(store: Store, device: string) {
  let best: { start: number; stop: number; bytes: number; certainty: Certainty } | null = null;
  const now = store.status?.elapsed ?? store.timeline.last;
  for (const span of store.spans.values()) {
    const memory = span.devices[device];
    if (memory?.peak == null) continue;
    const stop = span.stop ?? Math.max(now, span.start);
    const isTighter = best?.bytes === memory.peak && stop - span.start < best.stop - best.start;
    if (best === null || memory.peak > best.bytes || isTighter) {
      best = { start: span.start, stop, bytes: memory.peak, certainty: memory.certainty };
    }
  }
  return best;
}
