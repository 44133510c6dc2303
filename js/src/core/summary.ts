/** The figures for a screen reader: a sentence and a table, updated seldom enough to be read. */

import { make, setAttribute } from "./dom.ts";
import { formatBytes, formatDuration } from "./format.ts";
import { type Parts, shownParts } from "./parts.ts";
import { readDevice } from "./readings.ts";
import { SERIES } from "./series.ts";
import type { Store } from "./store.ts";

const HEADINGS = ["device", "allocated", "parts", "peak", "reserved", "device in use", "capacity"];

export class Summary {
  private readonly table = make("table", "");
  /** An element of its own, since Firefox shows the caption of a clipped table. */
  readonly element = make("div", "hidden", {}, [this.table]);

  update(store: Store, chart: Element): void {
    const { schema, status } = store;
    if (schema === null) return;
    const all = schema.devices.map((device) => readDevice(store, device));
    const caption = `Memory of ${schema.label || "this run"} after ${formatDuration(status?.elapsed ?? 0)}`;
    const rows = all.map(({ device, allocated, parts, peak, reserved, deviceUsed, total }) => [
      `${device.key} ${device.name}`,
      formatBytes(allocated),
      parts ? partsText(parts) : "n/a",
      peak ? `${formatBytes(peak.bytes)}, ${peak.certainty}` : "n/a",
      ...[reserved, deviceUsed, total].map((bytes) => formatBytes(bytes)),
    ]);
    this.table.replaceChildren(
      make("caption", "", {}, [caption]),
      row(HEADINGS.map((text) => make("th", "", { scope: "col" }, [text]))),
      ...rows.map((cells) => row(cells.map((text) => make("td", "", {}, [text])))),
    );
    const first = rows.map((cells) => `${cells[0]}: allocated ${cells[1]}, peak ${cells[3]}`).join("; ");
    setAttribute(chart, "aria-label", `${caption}. ${first}.`);
  }
}

function partsText(parts: Parts): string {
  const names = shownParts(parts);
  return names.map((name) => `${SERIES[name].label} ${formatBytes(parts[name])}`).join(", ") || "nothing";
}

function row(cells: HTMLElement[]): HTMLElement {
  return make("tr", "", {}, cells);
}
