/** The place of a label: above its point and above everything drawn beneath it, within the plot. */

export interface Box {
  left: number;
  top: number;
  width: number;
  height: number;
}

export type Size = Pick<Box, "width" | "height">;

interface Plot {
  width: number;
  /** The pixel rows of horizontal lines that a label must not cross. */
  lines: number[];
  /** The highest pixel row drawn between two pixel columns. */
  skyline(left: number, right: number): number;
}

const CLEARANCE = 5;

/** The place, or null if there is none. */
export function placeLabel(point: { x: number; y: number }, { width, height }: Size, plot: Plot): Box | null {
  const left = Math.max(0, Math.min(point.x - width / 2, plot.width - width));
  let bottom = Math.min(point.y - CLEARANCE - 2, plot.skyline(left, left + width) - CLEARANCE);
  for (const line of [...plot.lines].sort((a, b) => b - a)) {
    if (line < bottom + CLEARANCE && line > bottom - height - CLEARANCE) bottom = line - CLEARANCE;
  }
  return bottom < height ? null : { left, top: bottom - height, width, height };
}
