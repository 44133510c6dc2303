/** Cells end to end, with the pauses between them shortened. */

import { roundUp } from "./axis.ts";
import type { Span } from "./protocol.ts";
import type { Store } from "./store.ts";

/** The length of a long pause: about this share of all watched time, and at least this number of seconds. */
const PAUSE_SHARE = 0.02;
const LEAST_PAUSE = 0.05;
/** The share of the time below which pauses are drawn in full. */
const LEAST_GAIN = 1 / 3;

/** A second since the run began, and its place on an axis with short pauses. */
interface Knot {
  time: number;
  drawn: number;
}

export class Fold {
  constructor(private readonly knots: Knot[]) {}

  /** The place of a second on the axis. */
  toAxis(time: number): number {
    return along(this.knots, time, "time", "drawn");
  }

  /** The second since the run began at a place on the axis. */
  toTime(drawn: number): number {
    return along(this.knots, drawn, "drawn", "time");
  }
}

/** The axis of a run of several cells; null if the pauses between them are short. */
export function foldOf(spans: Iterable<Span>, now: number): Fold | null {
  const cells = [...spans].filter(({ parent }) => parent === null).sort((a, b) => a.start - b.start);
  if (cells.length < 2) return null;
  const watched = cells.reduce((sum, { start, stop }) => sum + (stop ?? Math.max(now, start)) - start, 0);
  const pause = roundUp(Math.max(PAUSE_SHARE * watched, LEAST_PAUSE), [1, 2, 5]);
  const knots: Knot[] = [{ time: 0, drawn: 0 }];
  const advance = (time: number, most: number) => {
    const last = knots.at(-1)!;
    if (time > last.time) knots.push({ time, drawn: last.drawn + Math.min(time - last.time, most) });
  };
  for (const { start, stop } of cells) {
    advance(start, pause);
    advance(stop ?? now, Number.POSITIVE_INFINITY);
  }
  advance(now, pause);
  const last = knots.at(-1)!;
  return last.time - last.drawn > LEAST_GAIN * last.time ? new Fold(knots) : null;
}

/** The store with all its times on the axis. */
export function folded(store: Store, fold: Fold): Store {
  const at = (time: number) => fold.toAxis(time);
  const { timeline, steps, status } = store;
  const time = timeline.time.slice(0, timeline.length).map(at);
  const moved = <T extends { start: number }>(each: T & { stop: number | null }) => ({
    ...each,
    start: at(each.start),
    stop: each.stop === null ? null : at(each.stop),
  });
  const group = (row: number) => {
    const found = steps.group(row);
    return { ...found, start: at(found.start), stop: at(found.stop) };
  };
  return Object.create(store, {
    timeline: { value: Object.create(timeline, { time: { value: time } }) },
    steps: { value: Object.create(steps, { group: { value: group } }) },
    spans: { value: new Map([...store.spans].map(([id, span]) => [id, moved(span)])) },
    guides: { value: store.guides.map(moved) },
    findings: {
      value: store.findings.map(({ kept = [], ...each }) => ({
        ...each,
        time: each.time === null ? null : at(each.time),
        kept: kept.map(([seconds, bytes]) => [at(seconds), bytes]),
      })),
    },
    status: { value: status && { ...status, elapsed: at(status.elapsed) } },
  });
}

/** Interpolates between two knots; after the last, seconds keep their length. */
function along(knots: Knot[], value: number, from: keyof Knot, to: keyof Knot): number {
  let low = 0;
  let high = knots.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (knots[middle]![from] <= value) low = middle;
    else high = middle - 1;
  }
  const before = knots[low]!;
  const after = knots[low + 1];
  const rise = after === undefined ? 1 : (after[to] - before[to]) / (after[from] - before[from]);
  return before[to] + rise * (value - before[from]);
}
