/** Allocated memory as stacked areas. */

import { type PartName, type Parts, partsOf, type ReadName, UPWARDS } from "./parts.ts";

/** The upper edge of a part at every instant, in bytes; its lower edge is the band's below. */
export interface Band {
  part: PartName;
  top: Float32Array;
  /** The greatest thickness, in bytes. */
  thickest: number;
}

/** The bands from the bottom up, without empty ones. The top of the last one is `allocated`. */
export function stackOf(allocated: Float32Array, read: Partial<Record<ReadName, Float32Array>>): Band[] {
  const bands = UPWARDS.map((part) => ({
    part,
    top: new Float32Array(allocated.length),
    thickest: 0,
  }));
  for (let index = 0; index < allocated.length; index++) {
    const parts = partsOf(allocated[index]!, (metric) => read[metric]?.[index] ?? Number.NaN);
    pile(bands, index, allocated[index]!, parts);
  }
  return bands.filter(({ thickest }) => thickest > 0);
}

function pile(bands: Band[], index: number, allocated: number, parts: Parts): void {
  let top = 0;
  for (const band of bands) {
    const bytes = parts[band.part];
    top += bytes;
    // A gap stays a gap, and rounding does not raise the stack above its line.
    band.top[index] = Number.isNaN(allocated) ? Number.NaN : Math.min(top, allocated);
    if (bytes > band.thickest) band.thickest = bytes;
  }
}
