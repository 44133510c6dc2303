/** Spans as bars in lanes by nesting, and the bars that fold into groups. */

import { roundUp } from "./axis.ts";
import { type Bar, type LaneView, LEAST_PIXELS, MAX_LANES } from "./bar.ts";
import type { Span } from "./protocol.ts";
import { laySteps } from "./steplane.ts";
import type { StepTable } from "./steps.ts";

const MAX_BARS = 400;
/** Fewer neighbours than this are not folded. */
const LEAST_TO_FOLD = 6;

/** The visible bars: steps first, so that an evaluation among them is drawn on top; the worst step is last. */
export function layLanes(spans: Iterable<Span>, table: StepTable, view: LaneView): Bar[] {
  const { lanes, below } = assignLanes([...spans]);
  const budget = Math.floor(MAX_BARS / (lanes.length + 1));
  const steps = laySteps(table, below, view, budget);
  const bars = lanes.flatMap((lane, index) => barsOf(lane, index, view, budget));
  return [...steps.groups, ...bars, ...steps.worst];
}

interface Lanes {
  lanes: Span[][];
  /** The lane below the one of a span. */
  below(parent: number): number;
}

/** Every span is one lane below its parent, or further down if siblings overlap. */
function assignLanes(spans: Span[]): Lanes {
  const shown = withoutBareTrain(spans).sort((a, b) => a.start - b.start || a.id - b.id);
  const laneOf = new Map<number, number>();
  const parents = new Map(spans.map((span) => [span.id, span.parent]));
  const ends: number[] = [];
  const lanes: Span[][] = [];
  const below = (id: number | null): number => {
    let parent = id;
    while (parent !== null && !laneOf.has(parent) && parents.has(parent))
      parent = parents.get(parent) ?? null;
    return parent === null ? 0 : (laneOf.get(parent) ?? -1) + 1;
  };
  for (const span of shown) {
    let lane = below(span.parent);
    while (lane < MAX_LANES && (ends[lane] ?? 0) > span.start + 1e-6) lane += 1;
    laneOf.set(span.id, lane);
    if (lane >= MAX_LANES) continue;
    ends[lane] = Math.max(ends[lane] ?? 0, span.stop ?? Number.POSITIVE_INFINITY);
    while (lanes.length <= lane) lanes.push([]);
    lanes[lane]!.push(span);
  }
  return { lanes, below };
}

/** A `train` span around epochs adds nothing to the cell's bar and theirs, so it has no lane. */
function withoutBareTrain(spans: Span[]): Span[] {
  const epochParents = new Set(spans.filter((span) => span.kind === "epoch").map((span) => span.parent));
  return spans.filter((span) => span.kind !== "train" || span.parent === null || !epochParents.has(span.id));
}

function barsOf(lane: Span[], index: number, view: LaneView, budget: number): Bar[] {
  const [from, to] = view.range;
  const isVisible = (span: Span) => span.start <= to && (span.stop ?? view.now) >= from;
  const visible = lane.filter(isVisible);
  const perPixel = (to - from) / Math.max(1, view.pixels);
  const typical =
    visible.reduce((sum, span) => sum + (span.stop ?? view.now) - span.start, 0) / visible.length;
  const narrow = visible.length < LEAST_TO_FOLD ? 1 : (LEAST_PIXELS * perPixel) / Math.max(typical, 1e-9);
  const wanted = Math.max(visible.length / budget, narrow);
  const groups = fold(lane, wanted).filter((group) => group.some(isVisible));
  return groups.map((group) => toBar(group, index, view));
}

/**
 * Groups of similar neighbours, whose size is a round number of at least `wanted`; an open span stays single. Groups
 * count from their parent's first child, so that they keep their members while the window slides.
 */
export function fold(lane: Span[], wanted: number): Span[][] {
  const size = roundUp(Math.max(1, wanted), [1, 2, 5]);
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

/** The plural of the most frequent numbered labels; another word stays as it is. */
const PLURALS = new Map([
  ["step", "steps"],
  ["epoch", "epochs"],
  ["batch", "batches"],
]);

/** "step 1" and "step 250" become "steps 1–250"; other labels are joined, or shown once if they are equal. */
export function rangeLabel(first: string, last: string): string {
  if (first === last) return first;
  const one = /^(.*?)(\d+)$/.exec(first);
  const two = /^(.*?)(\d+)$/.exec(last);
  if (!one || !two || one[1] !== two[1]) return `${first} – ${last}`;
  const plural = PLURALS.get(one[1]!.trim());
  return `${plural === undefined ? one[1] : `${plural} `}${one[2]}–${two[2]}`.trim();
}
