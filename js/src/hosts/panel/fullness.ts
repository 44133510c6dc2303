/** The use of the most important device, in a few characters and in a sentence. */

import { digits, formatBytes, formatShare, unitFor } from "../../core/format.ts";
import type { Device } from "../../core/protocol.ts";
import { latestReading, leading, shareUsed } from "../../core/readings.ts";
import type { Store } from "../../core/store.ts";
import { __ } from "./translate.ts";

export type Level = "" | "high" | "critical";

export interface Fullness {
  device: Device;
  level: Level;
  text: string;
  title: string;
}

/** Shares of the capacity in use, by any process. */
const LEVELS: [share: number, level: Level, words: string][] = [
  [0.95, "critical", "almost full"],
  [0.85, "high", "filling up"],
];

/** Null before the first figures. */
export function fullnessOf(store: Store): Fullness | null {
  const device = mostPressing(store);
  if (device === null) return null;
  const share = shareUsed(store, device);
  const [, level, levelText] = LEVELS.find(([from]) => share >= from) ?? [0, "" as Level, ""];
  const words = levelText === "" ? "" : __(levelText);
  const metric = leading(store, device);
  const held = latestReading(store, device, metric);
  const percent = Number.isNaN(share) ? "" : __("%1 of the device in use", formatShare(share));
  const parts = [
    __(
      metric === "allocated" ? "%1 allocated on %2 (%3)" : "%1 in use on %2 (%3)",
      formatBytes(held),
      device.key,
      device.name,
    ),
    percent,
  ];
  const title = [...parts, words].filter(Boolean).join(", ");
  const isFirst = device === store.schema?.devices[0];
  // Other processes may fill the device, too.
  const figure = level === "" ? held : share * device.total!;
  const figures = [isFirst ? "" : device.key, amounts(figure, device.total)].filter(Boolean).join(" ");
  return { device, level, text: [figures, words].filter(Boolean).join(" · "), title };
}

/** The fullest device if one is nearly full; else the one of which this run holds the largest part. */
function mostPressing(store: Store): Device | null {
  const held = (device: Device) => latestReading(store, device, leading(store, device));
  const devices = (store.schema?.devices ?? []).filter((device) => !Number.isNaN(held(device)));
  const nearlyFull = devices.filter((device) => shareUsed(store, device) >= LEVELS.at(-1)![0]);
  if (nearlyFull.length > 0) return highest(nearlyFull, (device) => shareUsed(store, device));
  return highest(devices, (device) => held(device) / (device.total ?? Number.POSITIVE_INFINITY));
}

function highest(devices: Device[], value: (device: Device) => number): Device | null {
  return devices.reduce<Device | null>((best, next) => {
    return best === null || value(next) > value(best) ? next : best;
  }, null);
}

/** `3.75 / 140.4 GiB`, or with two units if they differ. */
function amounts(allocated: number, total: number | null): string {
  if (total === null) return formatBytes(allocated);
  const [own, whole] = [unitFor(allocated), unitFor(total)];
  const used = own.name === whole.name ? digits(allocated / own.divisor) : formatBytes(allocated);
  return `${used} / ${formatBytes(total)}`;
}
