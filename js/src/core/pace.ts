/** The speed of a training and its remaining time, from its steps and their planned number. */

import type { Span } from "./protocol.ts";
import { countOf } from "./steplane.ts";
import type { StepGroup } from "./steps.ts";
import type { Store } from "./store.ts";

export interface Pace {
  /** The number of the newest finished step. */
  number: number;
  total: number | null;
  /** The number of known steps. */
  count: number;
  /** Steps per second of training; null until it is steady. */
  steps: number | null;
  tokens: number | null;
  /** Seconds. */
  left: number | null;
  /** Whether the training has ended; the figures are then those of all of it. */
  isOver: boolean;
}

/** Work between steps: it is left out of the speed, but takes time. */
const PAUSES = new Set(["evaluate", "predict", "save"]);
const ENOUGH = [
  { steps: 20, seconds: 5 },
  { steps: 5, seconds: 30 },
];
const STEADY = [
  { steps: 5, seconds: 2 },
  { steps: 2, seconds: 20 },
];
/**
 * Seconds without a finished step after which a loop of the user's own counts as ended, since nothing reports its end.
 */
const IDLE = 60;

/** Null before the first step. */
export function readPace(store: Store): Pace | null {
  const groups = trainingOf(store);
  const last = groups.at(-1);
  if (last === undefined) return null;
  const training = outermost(store, last.parent);
  const now = store.status?.elapsed ?? last.stop;
  const hasEnded = training !== null && training.stop !== null;
  const isIdle = training?.kind !== "train" && now - last.stop > IDLE;
  const isOver = store.status?.state !== "running" || hasEnded || isIdle;
  const pauses = pausesOf(store, now);
  // The first step is left out: kernels are compiled and caches filled in it.
  const usual = groups.length > 1 && countOf(groups[0]!) === 1 ? groups.slice(1) : groups;
  const measured = isOver ? measure(groups, pauses) : measure(newest(usual, pauses), pauses);
  const steady = isOver || isEnough(measured, STEADY);
  const total = training?.counts?.steps ?? null;
  const count = groups.reduce((sum, group) => sum + countOf(group), 0);
  const pace = { number: last.last, total, count, isOver };
  if (!steady || !(measured.seconds > 0)) return { ...pace, steps: null, tokens: null, left: null };
  const steps = measured.steps / measured.seconds;
  const tokens = measured.tokens > 0 ? measured.tokens / measured.seconds : null;
  if (isOver || total === null) return { ...pace, steps, tokens, left: null };
  const paused = overlap(pauses, groups[0]!.start, now) / count;
  const begun = Math.min(now - last.stop, 1 / steps);
  const left = Math.max(0, (total - last.last) * (1 / steps + paused) - begun);
  return { ...pace, steps, tokens, left: total > last.last ? left : null };
}

/** The steps of the training to which the newest step belongs. */
function trainingOf(store: Store): StepGroup[] {
  const { steps } = store;
  const groups: StepGroup[] = [];
  const newest = steps.length > 0 ? steps.group(steps.length - 1).parent : 0;
  const training = outermost(store, newest)?.id ?? newest;
  for (let row = steps.length - 1; row >= 0; row--) {
    const group = steps.group(row);
    const isKnown = store.spans.has(group.parent) || group.parent === newest;
    if (isKnown && (outermost(store, group.parent)?.id ?? group.parent) !== training) break;
    groups.push(group);
  }
  return groups.reverse();
}

/** The training around a span, or else the span itself; null if neither is known. */
function outermost({ spans }: Store, id: number): Span | null {
  let span = spans.get(id);
  while (span !== undefined && span.kind !== "train" && span.parent !== null) span = spans.get(span.parent);
  return span?.kind === "train" ? span : (spans.get(id) ?? null);
}

function pausesOf({ spans }: Store, now: number): [number, number][] {
  const pauses = [...spans.values()].filter(({ kind }) => PAUSES.has(kind));
  const stretches = pauses.map(({ start, stop }): [number, number] => [start, stop ?? now]);
  return stretches.sort(([a], [b]) => a - b);
}

interface Measured {
  steps: number;
  seconds: number;
  tokens: number;
}

function measure(groups: StepGroup[], pauses: [number, number][]): Measured {
  const [first, last] = [groups[0]!, groups.at(-1)!];
  return {
    steps: groups.reduce((sum, group) => sum + countOf(group), 0),
    seconds: last.stop - first.start - overlap(pauses, first.start, last.stop),
    tokens: groups.reduce((sum, group) => sum + group.tokens, 0),
  };
}

function newest(groups: StepGroup[], pauses: [number, number][]): StepGroup[] {
  const { stop } = groups.at(-1)!;
  let steps = 0;
  for (let from = groups.length - 1; from > 0; from--) {
    const { start } = groups[from]!;
    steps += countOf(groups[from]!);
    const isLong = isEnough({ steps, seconds: stop - start }, ENOUGH);
    const seconds = isLong ? stop - start - overlap(pauses, start, stop) : 0;
    if (isEnough({ steps, seconds }, ENOUGH)) return groups.slice(from);
  }
  return groups;
}

function isEnough({ steps, seconds }: Omit<Measured, "tokens">, enough: typeof ENOUGH): boolean {
  return enough.some((each) => steps >= each.steps && seconds >= each.seconds);
}

/** Pauses in order; those within another, such as a save within an evaluation, count once. */
function overlap(pauses: [number, number][], start: number, stop: number): number {
  let [sum, until] = [0, start];
  for (const [from, to] of pauses) {
    const end = Math.min(to, stop);
    sum += Math.max(0, end - Math.max(from, until));
    until = Math.max(until, end);
  }
  return sum;
}
