/** The latest figures of one device, for everything that shows figures. */

import { findPeak, type Peak } from "./peak.ts";
import type { Device } from "./protocol.ts";
import type { Store } from "./store.ts";

export interface Readings {
  device: Device;
  allocated: number;
  reserved: number;
  deviceUsed: number;
  total: number;
  peak: Peak | null;
}

export function readDevice(store: Store, device: Device): Readings {
  const latest = (metric: string) => latestReading(store, device, metric);
  return {
    device,
    allocated: latest("allocated"),
    reserved: latest("reserved"),
    deviceUsed: latest("device_used"),
    total: device.total ?? Number.NaN,
    peak: findPeak(store, device.key),
  };
}

/** How full the device is, by whoever knows most; NaN if nobody knows. */
export function shareUsed(store: Store, device: Device): number {
  const known = ["device_used", "reserved", "allocated"].map((m) => latestReading(store, device, m));
  return (known.find((value) => !Number.isNaN(value)) ?? Number.NaN) / (device.total ?? Number.NaN);
}

export function labelOf(store: Store, device: string, metric: string): string {
  return (
    store.schema?.series.find((s) => s.device === device && s.metric === metric)?.label ??
    metric.replace("_", " ")
  );
}

/** The last reading, past a gap at the end: what was last known, not nothing. */
export function latestReading(store: Store, device: Device, metric: string): number {
  const values = store.timeline.columns[store.columnOf(device.key, metric)]?.values;
  if (!values) return Number.NaN;
  const oldest = Math.max(0, store.timeline.length - 8);
  for (let row = store.timeline.length - 1; row >= oldest; row--) {
    if (!Number.isNaN(values[row]!)) return values[row]!;
  }
  return Number.NaN;
}
