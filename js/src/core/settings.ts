/** A person's choices of what to show. They stay in the browser, and never reach Python. */

import { isAside } from "./series.ts";

export type Range = readonly [number, number];

export interface Settings {
  /** The device that is shown. */
  device: string;
  /** The device that a person picked. Without one, or in a run without that device, the run decides. */
  picked: string;
  /** The horizontal axis, if the steps have tokens. */
  lens: "time" | "tokens";
  /** The last seconds to show, or null for the whole run. */
  window: number | null;
  /** The seconds that were picked by dragging or by a click on a bar; they take precedence over `window`. */
  zoom: Range | null;
  percent: boolean;
  /** Whether the known parts of allocated memory are drawn. */
  parts: boolean;
  paused: boolean;
  /** Metrics that are switched off. */
  hidden: Set<string>;
  /** The host's series that are drawn only on request, and were requested. */
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
