/** Guides for drawing: cut to the visible range, and left out if they are far from the data. */

import type { Finding, Guide } from "./judged.ts";
import type { Range, Settings } from "./settings.ts";
import type { Store } from "./store.ts";

/** The data must reach this share of a level; otherwise the axis would be stretched for the level alone. */
const NEAR = 0.6;

type Point = [time: number, bytes: number];

export interface DrawnGuide {
  kind: Guide["kind"];
  label: string;
  ends: [Point, Point];
  /** The margin of error in bytes at each end, either way. */
  band: [number, number];
  /** Whether the data exceed it; only for a budget. */
  isCrossed: boolean;
  /** The time at which the data first exceeded it, if that is known and visible. */
  crossedAt: number | null;
}

interface Seen {
  range: Range;
  now: number;
  /** The highest allocated bytes in the range. */
  allocated: number;
}

export function guidesIn(store: Store, settings: Settings, seen: Seen): DrawnGuide[] {
  if (settings.hidden.has("allocated")) return [];
  const guides = store.guides.filter(({ device }) => device === settings.device);
  return guides.flatMap((guide) => drawn(guide, seen, store.findings) ?? []);
}

/** The moments at which memory ran out, in order of time; only the last has a word. */
export function marksOf(guides: DrawnGuide[]): DrawnGuide[] {
  const marks = guides.filter(({ kind }) => kind === "oom");
  return marks.sort((one, two) => one.ends[1][0] - two.ends[1][0]);
}

/** The heights of the level lines, in bytes. */
export function levelsOf(guides: DrawnGuide[]): number[] {
  return guides.filter(({ kind }) => kind === "budget").map(({ ends }) => ends[1][1]);
}

/** The height of a guide at a time, in bytes; NaN outside of it. */
export function guideAt({ ends: [[start, first], [stop, last]] }: DrawnGuide, time: number): number {
  if (time < start || time > stop || start === stop) return Number.NaN;
  return first + ((time - start) / (stop - start)) * (last - first);
}

function drawn(guide: Guide, { range, now, allocated }: Seen, findings: Finding[]): DrawnGuide | null {
  const { kind, label, first, last } = guide;
  if (kind === "oom") return mark(guide, range);
  const isBudget = kind === "budget";
  const start = Math.max(guide.start, range[0]);
  // A budget is drawn into the future, too.
  const stop = Math.min(guide.stop ?? (isBudget ? range[1] : now), range[1]);
  if (!(start < stop) || (isBudget && allocated < NEAR * last)) return null;
  const at = ([one, two]: readonly [number, number], time: number) => {
    const share = guide.stop === null || isBudget ? 1 : (time - guide.start) / (guide.stop - guide.start);
    return Math.max(0, one + share * (two - one));
  };
  const crossedAt = isBudget ? crossingOf(guide, findings) : null;
  return {
    kind,
    label,
    ends: [
      [start, at([first, last], start)],
      [stop, at([first, last], stop)],
    ],
    band: [at(guide.band, start), at(guide.band, stop)],
    isCrossed: isBudget && allocated > last,
    crossedAt: crossedAt !== null && crossedAt >= start && crossedAt <= stop ? crossedAt : null,
  };
}

function mark({ kind, label, start, last }: Guide, range: Range): DrawnGuide | null {
  if (start < range[0] || start > range[1]) return null;
  const at: Point = [start, Math.max(0, last)];
  return { kind, label, ends: [at, at], band: [0, 0], isCrossed: false, crossedAt: null };
}

function crossingOf({ device }: Guide, findings: Finding[]): number | null {
  const times = findings
    .filter((finding) => finding.kind === "budget" && (finding.device ?? device) === device)
    .flatMap(({ time }) => time ?? []);
  return times.length === 0 ? null : Math.min(...times);
}
