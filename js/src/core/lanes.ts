/** Spans as bars in lanes by nesting: which are drawn, which fold into groups, which one was the worst. */

import type { Certainty, Span } from "./protocol.ts";

export const MAX_LANES = 4;
const MAX_BARS = 400;
/** Narrower bars than this are no longer bars; they fold into groups. */
const LEAST_PIXELS = 4;
/** Among this many siblings or more, the worst is worth marking. */
const LEAST_RIVALS = 3;

export interface Bar {
  lane: number;
  kind: string;
  label: string;
  start: number;
  stop: number;
  open: boolean;
  count: number;
  outcome: string;
  change: number | null;
  peak: number | null;
  certainty: Certainty;
  worst: boolean;
}

export interface LaneView {
  device: string;
  now: number;
  range: readonly [number, number];
  pixels: number;
}

/** The bars of what is in view, lane by lane, the worst of a lane last so that it lies on top. */
export function layLanes(spans: Iterable<Span>, view: LaneView): Bar[] {
  const lanes = assignLanes([...spans]);
  const budget = Math.floor(MAX_BARS / Math.max(1, lanes.length));
  return lanes.flatMap((lane, index) => fold(lane, index, view, budget));
}

/** Every span goes one lane below its parent; where siblings overlap, further down. */
function assignLanes(spans: Span[]): Span[][] {
  const shown = withoutBareTrain(spans).sort((a, b) => a.start - b.start || a.id - b.id);
  const laneOf = new Map<number, number>();
  const parents = new Map(spans.map((span) => [span.id, span.parent]));
  const ends: number[] = [];
  const lanes: Span[][] = [];
  for (const span of shown) {
    let parent = span.parent;
    while (parent !== null && !laneOf.has(parent) && parents.has(parent))
      parent = parents.get(parent) ?? null;
    let lane = parent === null ? 0 : (laneOf.get(parent) ?? -1) + 1;
    while (lane < MAX_LANES && (ends[lane] ?? 0) > span.start + 1e-6) lane += 1;
    laneOf.set(span.id, lane);
    if (lane >= MAX_LANES) continue;
    ends[lane] = Math.max(ends[lane] ?? 0, span.stop ?? Number.POSITIVE_INFINITY);
    while (lanes.length <= lane) lanes.push([]);
    lanes[lane]!.push(span);
  }
  return lanes;
}

/** A `train` span around epochs says nothing that the cell's bar and theirs do not. */
function withoutBareTrain(spans: Span[]): Span[] {
  const epochParents = new Set(spans.filter((span) => span.kind === "epoch").map((span) => span.parent));
  return spans.filter((span) => span.kind !== "train" || span.parent === null || !epochParents.has(span.id));
}

function fold(lane: Span[], index: number, view: LaneView, budget: number): Bar[] {
  const [from, to] = view.range;
  const isVisible = (span: Span) => span.start <= to && (span.stop ?? view.now) >= from;
  const visible = lane.filter(isVisible);
  const perPixel = (to - from) / Math.max(1, view.pixels);
  const typical =
    visible.reduce((sum, span) => sum + (span.stop ?? view.now) - span.start, 0) / visible.length;
  const wanted = Math.max(visible.length / budget, (LEAST_PIXELS * perPixel) / Math.max(typical, 1e-9));
  const size = visible.length < 2 * LEAST_RIVALS ? 1 : niceGroup(wanted);
  const groups = grouped(lane, size).filter((group) => group.some(isVisible));
  const worst = worstOf(lane, visible, index, view);
  return [...groups.map((group) => toBar(group, index, view)), ...(worst ? [worst] : [])];
}

/** Groups count from their parent's first child, so that they keep their members while the window slides. */
function grouped(lane: Span[], size: number): Span[][] {
  const groups: Span[][] = [];
  for (const span of lane) {
    const group = groups.at(-1) ?? [];
    const first = group[0];
    const isSameRun = first?.kind === span.kind && first.parent === span.parent;
    if (isSameRun && group.length < size && span.stop !== null) group.push(span);
    else groups.push([span]);
  }
  return groups;
}

function toBar(group: Span[], lane: number, view: LaneView): Bar {
  const first = group[0]!;
  const last = group.at(-1)!;
  const memories = group.map((span) => span.devices[view.device]);
  const before = memories[0]?.before ?? null;
  const after = memories.at(-1)?.after ?? null;
  const highest = memories.reduce((best, next) => ((next?.peak ?? -1) > (best?.peak ?? -1) ? next : best));
  const failed = group.find((span) => span.outcome !== "" && span.outcome !== "done");
  return {
    lane,
    kind: first.kind,
    label: group.length > 1 ? rangeLabel(first.label, last.label) : first.label,
    start: first.start,
    stop: last.stop ?? view.now,
    open: last.stop === null,
    count: group.length,
    outcome: failed?.outcome ?? last.outcome,
    change: before === null || after === null ? null : after - before,
    peak: highest?.peak ?? null,
    certainty: highest?.certainty ?? "sampled",
    worst: false,
  };
}

/** The span with the highest peak of the lane's steps, if it is in view and stands out. */
function worstOf(lane: Span[], visible: Span[], index: number, view: LaneView): Bar | null {
  const peakOf = (span: Span) => span.devices[view.device]?.peak ?? Number.NEGATIVE_INFINITY;
  const rivals = lane.filter((span) => span.kind === "step" && span.stop !== null && peakOf(span) > 0);
  if (rivals.length < LEAST_RIVALS) return null;
  const worst = rivals.reduce((best, next) => (peakOf(next) > peakOf(best) ? next : best));
  const standsOut = rivals.some((span) => peakOf(span) < peakOf(worst));
  return standsOut && visible.includes(worst) ? { ...toBar([worst], index, view), worst: true } : null;
}

/** "step 1" and "step 250" are "steps 1–250"; other pairs are written out. */
export function rangeLabel(first: string, last: string): string {
  const one = /^(.*?)(\d+)$/.exec(first);
  const two = /^(.*?)(\d+)$/.exec(last);
  if (!one || !two || one[1] !== two[1]) return `${first} – ${last}`;
  const name = one[1]!.trim();
  return `${name === "" ? "" : `${name}s `}${one[2]}–${two[2]}`;
}

function niceGroup(wanted: number): number {
  if (wanted <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(wanted));
  return (
    [1, 2, 2.5, 5, 10].map((m) => m * power).find((size) => Number.isInteger(size) && size >= wanted) ??
    10 * power
  );
}
