/** The picture before it is drawn: its contents, and their places on the page. */

import type { Ticks } from "./axis.ts";
import type { Bar } from "./bar.ts";
import type { Fold } from "./fold.ts";
import type { Unit } from "./format.ts";
import type { Gap } from "./gaps.ts";
import type { DrawnGuide } from "./guides.ts";
import type { Peak } from "./peak.ts";
import type { Box } from "./place.ts";
import type { LineName } from "./series.ts";
import type { Range } from "./settings.ts";
import type { Band } from "./stack.ts";

export const MARGIN = { left: 56, right: 18, top: 2, bottom: 20 };
export const LANE_PIXELS = 15;
export const LABEL_PIXELS = 11;
export const WORD_PIXELS = 10;

export interface Line {
  metric: LineName;
  /** The row of the table of series with its look. */
  look: LineName;
  values: Float32Array;
}

/** The label of a level line or a mark. */
export interface Word {
  text: string;
  box: Box;
  /** Whether the line was exceeded, or memory ran out. */
  isAlarming: boolean;
}

export interface Scene {
  range: Range;
  /** How times of the range, the bars and the rest were shortened; null if they were not. */
  fold: Fold | null;
  /** Seconds since the epoch at which the run began. */
  startedAt: number;
  width: number;
  height: number;
  lanesHeight: number;
  laneCount: number;
  bars: Bar[];
  gaps: Gap[];
  x: Float64Array;
  lines: Line[];
  /** The parts of allocated memory, from the bottom up; empty if unknown or switched off. */
  bands: Band[];
  unit: Unit;
  /** Of the y axis, in `unit`. */
  ticks: Ticks;
  /** Bytes at the upper end of the y axis. */
  top: number;
  /** The capacity in bytes, if the data come near it. */
  capacity: number | null;
  peak: (Peak & { text: string; box: Box }) | null;
  /** Budgets that the data come near, and trends. */
  guides: DrawnGuide[];
  /** The labels of the level lines. */
  words: Word[];
}

/** The visible contents of a scene: its lines, and bands that are at least one pixel thick somewhere. */
export function namesIn({ lines, bands, height, lanesHeight, top }: Scene) {
  const pixel = top / (height - lanesHeight);
  return {
    metrics: lines.map(({ metric }) => metric),
    parts: bands.filter(({ thickest }) => thickest >= pixel).map(({ part }) => part),
  };
}

export function timeToPixel(scene: Pick<Scene, "range" | "width">, time: number): number {
  return ((time - scene.range[0]) / (scene.range[1] - scene.range[0])) * scene.width;
}

export function pixelToTime(scene: Pick<Scene, "range" | "width">, pixel: number): number {
  return scene.range[0] + (pixel / scene.width) * (scene.range[1] - scene.range[0]);
}

/** The height of the plot in pixel rows without the lanes. */
export function bytesToPixel(
  { height, lanesHeight, top }: Pick<Scene, "height" | "lanesHeight" | "top">,
  bytes: number,
): number {
  return (height - lanesHeight) * (1 - bytes / top);
}
