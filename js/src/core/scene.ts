/** The picture before it is drawn: what is in it, and where on the page. */

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
  /** The row that says how it is drawn. */
  look: LineName;
  values: Float32Array;
}

/** What a level line or a mark is called. */
export interface Word {
  text: string;
  box: Box;
  /** The line has been crossed, or memory ran out. */
  isAlarming: boolean;
}

export interface Scene {
  range: Range;
  /** How the range, the bars and all else with times were shortened; null where nothing was. */
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
  /** What allocated memory is made of, from the bottom up; empty where that is not known, or not asked for. */
  bands: Band[];
  unit: Unit;
  /** Of the y axis, in `unit`. */
  ticks: Ticks;
  /** Bytes at the upper end of the y axis. */
  top: number;
  /** Bytes, where the data come near it. */
  capacity: number | null;
  peak: (Peak & { text: string; box: Box }) | null;
  /** Budgets, where the data come near them, and trends. */
  guides: DrawnGuide[];
  /** What stands on the level lines. */
  words: Word[];
}

/** What of a scene can be seen: its lines, and the bands that are as thick as a pixel somewhere. */
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

/** Pixel rows from the top of the plot, which is what the lanes leave. */
export function bytesToPixel(
  { height, lanesHeight, top }: Pick<Scene, "height" | "lanesHeight" | "top">,
  bytes: number,
): number {
  return (height - lanesHeight) * (1 - bytes / top);
}
