/** The lane of steps: bars of one or of many steps, by the pixels they have, and the worst step. */

import { type Bar, type LaneView, LEAST_PIXELS, MAX_LANES } from "./bar.ts";
import { type DeviceGroup, joined, type StepGroup, type StepTable } from "./steps.ts";

/** The worst step is marked only among this many steps or more. */
const LEAST_RIVALS = 3;
/** The ratio of its peak to that of most steps from which on it is marked, if others have as many tokens. */
const STANDS_OUT = 0.02;
/** The same ratio for sampled peaks, which differ by a few percent by chance. */
const BY_CHANCE = 0.1;

/** The visible groups, and the worst step of all if it is visible; at most about `budget` bars. */
export function laySteps(
  table: StepTable,
  below: (parent: number) => number,
  view: LaneView,
  budget: number,
): { groups: Bar[]; worst: Bar[] } {
  const all = Array.from({ length: table.length }, (_, row) => table.groupOn(row, view.device));
  const [from, to] = view.range;
  const visible = all.filter(({ start, stop }) => start <= to && stop >= from);
  const laneOf = lanesOf(all, below);
  const size = sizeOf(visible, view, budget);
  const shown = visible.filter(({ parent }) => laneOf(parent) < MAX_LANES);
  const groups = halved(grouped(shown, size), 2 * budget);
  const worst = worstOf(all);
  const isInView =
    worst !== null && worst.start <= to && worst.stop >= from && laneOf(worst.parent) < MAX_LANES;
  return {
    groups: groups.map((group) => toBar(group, laneOf(group.parent))),
    worst: isInView ? [{ ...toBar(worst, laneOf(worst.parent)), worst: true }] : [],
  };
}

/** The step with the highest peak, if there are enough steps and it stands out; null otherwise. */
export function worstOf(all: DeviceGroup[]): DeviceGroup | null {
  const rivals = all.filter(({ memory }) => memory !== null);
  const count = rivals.reduce((sum, group) => sum + countOf(group), 0);
  if (count < LEAST_RIVALS) return null;
  const worst = rivals.reduce((best, next) => (next.memory!.peak > best.memory!.peak ? next : best));
  const { peak, certainty, worstTokens } = worst.memory!;
  // A group is placed by its middle.
  const middles = rivals.map(({ memory }) => (memory!.lowest + memory!.peak) / 2).sort((a, b) => a - b);
  const above = peak - middles[(middles.length - 1) >> 1]!;
  const others = rivals.filter((group) => group !== worst);
  const shorter = others.filter(({ memory }) => worstTokens > memory!.worstTokens).length;
  const isLongest = shorter > 0 && shorter === others.length;
  const mayBeChance = certainty === "sampled" && 2 * shorter < others.length;
  const least = (mayBeChance ? BY_CHANCE : STANDS_OUT) * peak;
  return above > 0 && (above >= least || isLongest) ? alone(worst) : null;
}

export function countOf({ first, last }: StepGroup): number {
  return last - first + 1;
}

/** The lane of a span that was dropped is that of other spans of steps. */
function lanesOf(all: DeviceGroup[], below: (parent: number) => number): (parent: number) => number {
  const parents = [...new Set(all.map(({ parent }) => parent))];
  const known = parents.map(below).filter((lane) => lane > 0);
  const usual = known.at(-1) ?? 0;
  const lanes = new Map(parents.map((parent) => [parent, below(parent) || usual]));
  return (parent) => lanes.get(parent) ?? usual;
}

/** A power of two, like the kernel's, so that groups keep their members while the chart grows. */
function sizeOf(visible: DeviceGroup[], { range, pixels }: LaneView, budget: number): number {
  const count = visible.reduce((sum, group) => sum + countOf(group), 0);
  const seconds = visible.reduce((sum, { start, stop }) => sum + stop - start, 0);
  const perPixel = (range[1] - range[0]) / Math.max(1, pixels);
  const wanted = Math.max(count / budget, (LEAST_PIXELS * perPixel * count) / Math.max(seconds, 1e-9));
  return 2 ** Math.max(0, Math.ceil(Math.log2(Math.max(wanted, 1)) - 1e-9));
}

function grouped(groups: DeviceGroup[], size: number): DeviceGroup[] {
  const places = groups.map(({ parent, first }) => `${parent}/${Math.floor((first - 1) / size)}`);
  return joinedWhere(groups, (at) => places[at] === places[at - 1]);
}

/** If steps have very many parents, such as a block around each, neighbours are joined all the same. */
function halved(groups: DeviceGroup[], most: number): DeviceGroup[] {
  return groups.length <= most
    ? groups
    : halved(
        joinedWhere(groups, (at) => at % 2 === 1),
        most,
      );
}

/** Merges groups into the one before. */
function joinedWhere(groups: DeviceGroup[], isTaken: (at: number) => boolean): DeviceGroup[] {
  const kept: DeviceGroup[] = [];
  groups.forEach((group, at) => {
    if (at > 0 && isTaken(at)) kept.push(joined(kept.pop()!, group));
    else kept.push(group);
  });
  return kept;
}

/** The worst step as a bar of its own, at its place in the group if all steps took equally long. */
function alone(group: DeviceGroup): DeviceGroup {
  const { first, start, stop, memory } = group;
  const count = countOf(group);
  if (count === 1 || memory === null || memory.worst === 0) return group;
  const each = (stop - start) / count;
  const begin = start + Math.min(Math.max(memory.worst - first, 0), count - 1) * each;
  const place = { first: memory.worst, last: memory.worst, start: begin, stop: begin + each };
  const unknown = { samples: NaN, longest: NaN, tokens: memory.worstTokens, contentTokens: NaN };
  return { ...group, ...place, ...unknown };
}

function toBar(steps: DeviceGroup, lane: number): Bar {
  const { first, last, start, stop, memory } = steps;
  return {
    lane,
    kind: "step",
    label: first === last ? `step ${first}` : `steps ${first}–${last}`,
    start,
    stop,
    open: false,
    count: countOf(steps),
    outcome: "done",
    change: null,
    peak: memory?.peak ?? null,
    certainty: memory?.certainty ?? "sampled",
    worst: false,
    steps,
  };
}
