/** A bar in a lane: one span, or neighbours that are alike. */

import type { Certainty } from "./protocol.ts";
import type { DeviceGroup } from "./steps.ts";

export const MAX_LANES = 4;
/** Narrower bars cannot be seen as bars, and are folded into groups. */
export const LEAST_PIXELS = 4;

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
  /** Only for a bar of steps. */
  steps?: DeviceGroup;
}

export interface LaneView {
  device: string;
  now: number;
  range: readonly [number, number];
  pixels: number;
}
