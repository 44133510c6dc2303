/** What a device's memory is for: the parts' names, their colours, and how they stand on one another. */

import type { Kept } from "./judged.ts";
import { HELD, type PartName, SERIES, STACK } from "./series.ts";
import type { Store } from "./store.ts";

export { type PartName, STACK };
/** What is read of each device, as far as it is known; the rest of the stack follows from it. */
export type ReadName = Exclude<PartName, "activations">;
export const READ = STACK.filter((name) => name !== "activations");

/** From the bottom of a chart up: what was there before, and stays, is the ground. */
export const UPWARDS = [...STACK].sort((a, b) => Number(b === "before") - Number(a === "before"));

export type Parts = Record<PartName, number>;

/** What a part is called where there is little room. */
export function shortName(name: PartName): string {
  const row: { label: string; short?: string } = SERIES[name];
  return row.short ?? row.label;
}

/** A remainder of less than this share is the rounding of 32-bit readings. */
const LEAST_SHARE = 1e-6;

/** The parts worth a figure, from the bottom up. */
export function toldOf(parts: Parts): PartName[] {
  const allocated = STACK.reduce((sum, name) => sum + parts[name], 0);
  return STACK.filter((name) => parts[name] > LEAST_SHARE * allocated);
}

/** Whether a metric is one of those that `allocated` is made of. */
export function isPart(metric: string): boolean {
  return READ.some((name) => name === metric);
}

/** Whether anything was ever found on a device: what is not known is not drawn as a part. */
export function knowsParts(store: Store, device: string): boolean {
  return HELD.some((metric) => {
    const column = store.timeline.columns[store.columnOf(device, metric)];
    column?.scan(0, store.timeline.length);
    return (column?.high ?? 0) > 0;
  });
}

/**
 * The parts of so many allocated bytes. They never exceed them: of known parts that do, as readings of two instants
 * may, what stands highest is cut. What nobody explains is an activation only within a step.
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
