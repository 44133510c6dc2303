/** Peaks of steps by the tokens of their batches, before drawing: one point for each row of the step table. */

import { fittedRange, type Ticks, tickCount, ticksWithin } from "./axis.ts";
import { formatBytes, formatCount, percentOf, type Unit, unitFor } from "./format.ts";
import { peakText } from "./peak.ts";
import type { Range, Settings } from "./settings.ts";
import { worstOf } from "./steplane.ts";
import type { StepGroup, StepMemory } from "./steps.ts";
import type { Store } from "./store.ts";
import type { TipText } from "./tip.ts";

/** More points than this overlap. */
const MOST_POINTS = 800;
const LEAST_CELL_PIXELS = 2;
/** The least number of steps with different tokens: fewer show no trend. */
const LEAST_DIFFERENT = 3;
const TICK_PIXELS = 84;
const NEAR_PIXELS = 14;

export interface Point {
  tokens: number;
  group: StepGroup;
  memory: StepMemory;
}

export interface Cloud {
  width: number;
  height: number;
  lanesHeight: 0;
  points: Point[];
  /** The point with the highest peak, if it stands out; `points` has it, too. */
  worst: (Point & { text: string; shortText: string }) | null;
  /** Tokens. */
  x: { range: Range; ticks: Ticks };
  /** In `unit`. */
  y: { range: Range; ticks: Ticks };
  unit: Unit;
}

/** Whether a device has this picture: enough steps with known and different tokens. */
export function hasCloud({ steps }: Store, device: string): boolean {
  const different = new Set<number>();
  for (let row = 0; row < steps.length && different.size < LEAST_DIFFERENT; row++) {
    const tokens = steps.at(row, `${device}/worst_tokens`);
    if (tokens > 0 && steps.at(row, `${device}/peak`) > 0) different.add(tokens);
  }
  return different.size >= LEAST_DIFFERENT;
}

export function composeCloud(store: Store, settings: Settings, width: number, height: number): Cloud {
  const { steps, schema } = store;
  const all: Point[] = [];
  for (let row = 0; row < steps.length; row++) {
    const memory = steps.memory(row, settings.device);
    if (memory === null || !(memory.worstTokens > 0)) continue;
    all.push({ tokens: memory.worstTokens, group: steps.group(row), memory });
  }
  const [fewest, most] = extremes(all.map(({ tokens }) => tokens));
  const [lowest, highest] = extremes(all.flatMap(({ memory }) => [memory.peak, memory.after || memory.peak]));
  const total = schema?.devices.find(({ key }) => key === settings.device)?.total ?? null;
  const unit = settings.percent && total !== null ? percentOf(total) : unitFor(highest * 1.06);
  const xRange = fittedRange(fewest, most);
  const yRange = fittedRange(lowest / unit.divisor, (1.08 * highest) / unit.divisor);
  const ticks = ticksWithin(xRange, Math.max(2, width / TICK_PIXELS));
  const counted = { ...ticks, texts: ticks.values.map(formatCount) };
  const cloud = {
    width,
    height,
    lanesHeight: 0 as const,
    worst: worstPoint(all),
    x: { range: xRange, ticks: counted },
    y: { range: yRange, ticks: belowTop(ticksWithin(yRange, tickCount(height)), yRange) },
    unit,
  };
  return { ...cloud, points: thinned(all, cloud) };
}

export function toPixels(
  cloud: Omit<Cloud, "points">,
  tokens: number,
  bytes: number,
): [x: number, y: number] {
  const share = (value: number, [from, to]: Range) => (value - from) / (to - from);
  const x = cloud.width * share(tokens, cloud.x.range);
  return [x, cloud.height * (1 - share(bytes / cloud.unit.divisor, cloud.y.range))];
}

/** The point nearest to the pointer, if one is near. */
export function pointAt(cloud: Cloud, x: number, y: number): Point | null {
  let nearest: Point | null = null;
  let least = NEAR_PIXELS;
  for (const point of cloud.worst ? [...cloud.points, cloud.worst] : cloud.points) {
    const [left, top] = toPixels(cloud, point.tokens, point.memory.peak);
    const distance = Math.hypot(left - x, top - y);
    // The worst point comes last, and is drawn on top.
    if (distance <= least) [nearest, least] = [point, distance];
  }
  return nearest;
}

export function readPoint({ tokens, group, memory }: Point): TipText {
  const { first, last } = group;
  const rows: [string, string][] = [
    ["tokens", formatCount(tokens)],
    ["peak", peakText(memory.peak, memory.certainty)],
  ];
  if (!Number.isNaN(memory.after)) rows.push(["after", formatBytes(memory.after)]);
  return { title: first === last ? `step ${first}` : `step ${memory.worst} of ${first}–${last}`, rows };
}

function worstPoint(all: Point[]): Cloud["worst"] {
  const worst = worstOf(all.map(({ group, memory }) => ({ ...group, memory })));
  if (worst?.memory == null) return null;
  const { memory } = worst;
  const peak = `peak ${peakText(memory.peak, memory.certainty)}`;
  const step = `step ${worst.first}`;
  const text = `${step} · ${formatCount(memory.worstTokens)} tokens · ${peak}`;
  return { tokens: memory.worstTokens, group: worst, memory, text, shortText: `${step} · ${peak}` };
}

/** One point of each group that would overlap; fewer if there are very many. */
function thinned(all: Point[], cloud: Omit<Cloud, "points">): Point[] {
  for (let cell = LEAST_CELL_PIXELS; ; cell *= 1.5) {
    const kept = new Map<string, Point>();
    for (const point of all) {
      const [x, y] = toPixels(cloud, point.tokens, point.memory.peak);
      kept.set(`${Math.round(x / cell)},${Math.round(y / cell)}`, point);
    }
    if (kept.size <= MOST_POINTS) return [...kept.values()];
  }
}

/** A label has no room at the very top. */
function belowTop({ values, texts }: Ticks, [from, to]: Range): Ticks {
  const fits = (value: number) => value < to - 0.06 * (to - from);
  return { values: values.filter(fits), texts: texts.filter((_, index) => fits(values[index]!)) };
}

function extremes(values: number[]): [number, number] {
  let [low, high] = [Number.POSITIVE_INFINITY, 1];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [Math.min(low, high), high];
}
