/** What a person chose to look at. It lives in the browser and never reaches Python. */

import { isAside } from "./series.ts";

export type Range = readonly [number, number];

export interface Settings {
  /** The device that is shown. */
  device: string;
  /** The one that a person picked; where nobody did, or a run has no such device, the run says what is shown. */
  picked: string;
  /** Against what memory is drawn, where steps tell their tokens. */
  lens: "time" | "tokens";
  /** The last so many seconds, or null for the whole run. */
  window: number | null;
  /** Seconds picked by dragging or by a click on a bar; wins over `window`. */
  zoom: Range | null;
  percent: boolean;
  /** Whether allocated memory is drawn part by part, where they are known. */
  parts: boolean;
  paused: boolean;
  /** Metrics that are switched off. */
  hidden: Set<string>;
  /** Those of the host that are drawn only where they are asked for, and are. */
  asked: Set<string>;
}

export function defaultSettings(): Settings {
  return {
    device: "",
    picked: "",
    lens: "time",
    window: null,
    zoom: null,
    percent: false,
    parts: true,
    paused: false,
    hidden: new Set(),
    asked: new Set(),
  };
}

export function isHidden({ device, hidden, asked }: Settings, metric: string): boolean {
  return isAside(device, metric) ? !asked.has(metric) : hidden.has(metric);
}

export function toggle({ device, hidden, asked }: Settings, metric: string): void {
  const switched = isAside(device, metric) ? asked : hidden;
  if (!switched.delete(metric)) switched.add(metric);
}
