/** Stretches without samples. */

import type { Timeline } from "./timeline.ts";

export interface Gap {
  start: number;
  stop: number;
}

/** More bands than this cannot be told apart on a chart; the longest are kept. */
const MAX_GAPS = 100;

/** The gaps of [start, stop] that last longer than `least` seconds, from the last reading to the next. */
export function gapsWithin(
  timeline: Timeline,
  [start, stop]: readonly [number, number],
  least: number,
): Gap[] {
  const found: Gap[] = [];
  const { gaps, time, length } = timeline;
  for (let index = 0; index < gaps.length; index++) {
    const first = gaps[index]!;
    let last = first;
    while (gaps[index + 1] === last + 1) last = gaps[++index]!;
    const gap = { start: time[Math.max(0, first - 1)]!, stop: time[Math.min(length - 1, last + 1)]! };
    if (gap.stop > start && gap.start < stop && gap.stop - gap.start > least) found.push(gap);
  }
  return found.sort((a, b) => b.stop - b.start - (a.stop - a.start)).slice(0, MAX_GAPS);
}
