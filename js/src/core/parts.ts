/** The parts of a device's memory: their names, their colours and their order in the stack. */

import type { Kept } from "./judged.ts";
import { HELD, type PartName, SERIES, STACK } from "./series.ts";
import type { Store } from "./store.ts";

export { type PartName, STACK };
/** The parts that are read of each device, as far as known; the rest of the stack follows from them. */
export type ReadName = Exclude<PartName, "activations">;
export const READ = STACK.filter((name) => name !== "activations");

/** From the bottom of a chart to the top; memory from before the watch is the lowest. */
export const UPWARDS = [...STACK].sort((a, b) => Number(b === "before") - Number(a === "before"));

export type Parts = Record<PartName, number>;

/** The short name of a part. */
export function shortName(name: PartName): string {
  const row: { label: string; short?: string } = SERIES[name];
  return row.short ?? row.label;
}

/** A remainder below this share comes from rounding to 32 bits. */
const LEAST_SHARE = 1e-6;

/** The parts with a figure of their own, from the bottom to the top. */
export function shownParts(parts: Parts): PartName[] {
  const allocated = STACK.reduce((sum, name) => sum + parts[name], 0);
  return STACK.filter((name) => parts[name] > LEAST_SHARE * allocated);
}

/** Whether a metric is a part of `allocated`. */
export function isPart(metric: string): boolean {
  return READ.some((name) => name === metric);
}

/** Whether any part of a device was found; otherwise no parts are drawn. */
export function knowsParts(store: Store, device: string): boolean {
  return HELD.some((metric) => {
    const column = store.timeline.columns[store.columnOf(device, metric)];
    column?.scan(0, store.timeline.length);
    return (column?.high ?? 0) > 0;
  });
}

/**
 * The parts of `allocated` bytes, which they never exceed: if the known parts do, as readings of two instants may, the
 * uppermost are cut. The remainder is activations only within a step.
 */
export function partsOf(allocated: number, read: (metric: ReadName) => number): Parts {
  let room = allocated || 0;
  const parts: Partial<Parts> = {};
  for (const name of UPWARDS) {
    if (name === "kept") continue;
    const known = name === "activations" ? room : read(name);
    const wanted = name === "unattributed" && Number.isNaN(known) ? room : known;
    const taken = Math.min(room, Math.max(0, wanted || 0));
    parts[name] = taken;
    room -= taken;
  }
  parts.kept = Math.min(parts.unattributed!, read("kept") || 0);
  parts.unattributed! -= parts.kept;
  return parts as Parts;
}

/** A function of seconds: the bytes on a device that names keep, as far as they are not attributed. */
export function keptOn(store: Store, device: string): (time: number) => number {
  const starts = [...store.spans.values()].filter(({ parent }) => parent === null).map(({ start }) => start);
  const all = store.findings.flatMap(({ kept = [], ...finding }) => {
    if (finding.device !== device || kept.length === 0) return [];
    const last = kept.at(-1)![0];
    // When the next cell begins, they may have been freed.
    return [{ kept, until: Math.min(...starts.filter((start) => start >= last)) }];
  });
  const at = (kept: Kept[], time: number) => {
    const next = kept.findIndex(([seconds]) => seconds > time);
    const [after, before] = [kept.at(next)!, kept[next - 1]];
    if (before === undefined) return next === 0 ? 0 : after[1];
    return before[1] + ((after[1] - before[1]) * (time - before[0])) / (after[0] - before[0]);
  };
  return (time) => all.reduce((sum, { kept, until }) => sum + (time < until ? at(kept, time) : 0), 0);
}
