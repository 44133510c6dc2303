/** The latest figures of one device, for all parts of the page that show figures. */

import { keptOn, knowsParts, type Parts, partsOf } from "./parts.ts";
import { findPeak, type Peak } from "./peak.ts";
import type { Device } from "./protocol.ts";
import { OVERVIEW } from "./series.ts";
import type { Store } from "./store.ts";

export interface Readings {
  device: Device;
  allocated: number;
  /** The leading figure: allocated memory, or the device in use if other processes filled it and this one did not. */
  held: number;
  reserved: number;
  deviceUsed: number;
  /** The memory of CUDA itself and its libraries. */
  context: number;
  total: number;
  /** The parts of allocated memory; null if none was found on the device. */
  parts: Parts | null;
  peak: Peak | null;
}

export function readDevice(store: Store, device: Device): Readings {
  const latest = (metric: string) => latestReading(store, device, metric);
  return {
    device,
    allocated: latest("allocated"),
    held: latest(leading(store, device)),
    reserved: latest("reserved"),
    deviceUsed: latest("device_used"),
    context: latest("context"),
    parts: knowsParts(store, device.key) ? partsAt(store, device.key, lastRow(store, device)) : null,
    total: device.total ?? Number.NaN,
    peak: findPeak(store, device.key),
  };
}

/** The leading metric: the device in use if other processes filled it and this one did not, else allocated memory. */
export function leading(store: Store, device: Device): "allocated" | "device_used" {
  const isLed = store.status?.lead !== undefined && device.key.includes(":");
  return isLed && !(latestReading(store, device, "allocated") > 0) ? "device_used" : "allocated";
}

/** The factor by which another GPU must hold more memory to be shown instead. */
const FAR_MORE = 20;

/**
 * The device to show if nobody picked one; null before any is known. With GPUs it is the one that is shown or the
 * first, unless a warning names another, or the run holds, or held, far more on it.
 */
export function deviceToShow(store: Store, shown: string, warned: string | null): Device | null {
  const devices = store.schema?.devices ?? [];
  const gpus = devices.filter(({ key }) => key.includes(":"));
  const named = (wanted: string | null) => gpus.find(({ key }) => key === wanted);
  const overview = devices.find(({ key }) => key === OVERVIEW);
  const first = overview ?? named(warned) ?? named(shown) ?? gpus[0] ?? devices[0] ?? null;
  if (first === null || first.key === warned || !gpus.includes(first)) return first;
  const outermost = [...store.spans.values()].filter(({ parent }) => parent === null);
  const most = (device: Device) => {
    const peaks = outermost.map(({ devices }) => devices[device.key]?.peak ?? 0);
    return Math.max(latestReading(store, device, "allocated") || 0, ...peaks);
  };
  const fullest = gpus.reduce((best, next) => (most(next) > most(best) ? next : best), first);
  return most(fullest) > FAR_MORE * most(first) ? fullest : first;
}

/** How full the device is, by the source that knows most; NaN if unknown. */
export function shareUsed(store: Store, device: Device): number {
  const known = ["device_used", "reserved", "allocated"].map((m) => latestReading(store, device, m));
  return (known.find((value) => !Number.isNaN(value)) ?? Number.NaN) / (device.total ?? Number.NaN);
}

/** The highest allocated bytes as a share of the device's capacity; NaN if that is unknown. */
export function peakShare({ allocated, peak, total }: Readings): number {
  return Math.max(allocated || 0, peak?.bytes ?? 0) / total;
}

export function labelOf(store: Store, device: string, metric: string): string {
  return (
    store.schema?.series.find((s) => s.device === device && s.metric === metric)?.label ??
    metric.replace("_", " ")
  );
}

/** The parts of allocated memory in one row of the timeline. */
export function partsAt(store: Store, device: string, row: number): Parts {
  const { time, columns } = store.timeline;
  const read = (metric: string) => columns[store.columnOf(device, metric)]?.values[row] ?? Number.NaN;
  const kept = () => keptOn(store, device)(time[row] ?? Number.NaN);
  return partsOf(read("allocated"), (metric) => (metric === "kept" ? kept() : read(metric)));
}

function lastRow(store: Store, device: Device): number {
  return lastKnown(store, store.columnOf(device.key, "allocated"));
}

/** The last reading; at a gap at the end, the one before the gap. */
export function latestReading(store: Store, device: Device, metric: string): number {
  const column = store.columnOf(device.key, metric);
  return store.timeline.columns[column]?.values[lastKnown(store, column)] ?? Number.NaN;
}

/** The newest row with a value in a column, if it is among the last few; -1 otherwise. */
function lastKnown({ timeline }: Store, column: number): number {
  const values = timeline.columns[column]?.values;
  const oldest = Math.max(0, timeline.length - 8);
  let row = values ? timeline.length - 1 : -1;
  while (row >= oldest && Number.isNaN(values![row]!)) row -= 1;
  return row < oldest ? -1 : row;
}
