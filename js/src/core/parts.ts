/** What a device's memory is for: the parts' names, their colours, and how they stand on one another. */

import { ACTIVATIONS, BUFFERS, GRADIENTS, OPTIMIZER, UNATTRIBUTED, WEIGHTS } from "./colors.ts";
import type { Store } from "./store.ts";

/** What tensors were found to be, from the bottom of a stack up. */
export const HELD = ["weights", "buffers", "optimizer", "gradients"] as const;
/** What is read of each device, as far as it is known; the rest of the stack follows from it. */
export const READ = [...HELD, "unattributed"] as const;
export const STACK = [...READ, "activations"] as const;

/** On the host what is not attributed is the process itself, and as good as constant: there it is the ground. */
const ON_HOST = [...STACK].sort((a, b) => Number(b === "unattributed") - Number(a === "unattributed"));

/** The parts of a device from the bottom up, by the device's key. */
export function stackOrder(device: string): readonly PartName[] {
  return device.includes(":") ? STACK : ON_HOST;
}

export type PartName = (typeof STACK)[number];
export type Parts = Record<PartName, number>;

export const PART: Record<PartName, { text: string; short: string; color: string }> = {
  weights: { text: "weights", short: "weights", color: WEIGHTS },
  buffers: { text: "buffers", short: "buffers", color: BUFFERS },
  optimizer: { text: "optimizer states", short: "optimizer", color: OPTIMIZER },
  gradients: { text: "gradients", short: "gradients", color: GRADIENTS },
  unattributed: { text: "not attributed", short: "not attributed", color: UNATTRIBUTED },
  activations: { text: "activations and temporaries", short: "activations", color: ACTIVATIONS },
};

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
export function partsOf(allocated: number, read: (metric: (typeof READ)[number]) => number): Parts {
  let room = allocated || 0;
  const take = (bytes: number) => {
    const taken = Math.min(room, Math.max(0, bytes || 0));
    room -= taken;
    return taken;
  };
  const [weights, buffers, optimizer, gradients] = HELD.map((metric) => take(read(metric)));
  const before = read("unattributed");
  const unattributed = take(Number.isNaN(before) ? room : before);
  return {
    weights: weights!,
    buffers: buffers!,
    optimizer: optimizer!,
    gradients: gradients!,
    unattributed,
    activations: room,
  };
}
