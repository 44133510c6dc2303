/** Guides as Plotly's traces and shapes. */

import { PEAK } from "./colors.ts";
import { marksOf } from "./guides.ts";
import type { Scene } from "./scene.ts";
import type { Theme } from "./theme.ts";

const TRACE = { type: "scatter", hoverinfo: "skip" };

/** Trends with their bands, and marks where a budget was exceeded or memory ran out. */
export function guideTraces({ guides, unit }: Scene, theme: Theme): object[] {
  const marks = marksOf(guides).map(({ ends }) => ends[1]);
  const ranOut = {
    ...{ ...TRACE, uid: "ran-out", mode: "markers", cliponaxis: false },
    x: marks.map(([time]) => time),
    y: marks.map(([, bytes]) => bytes / unit.divisor),
    marker: { color: PEAK, size: 10, symbol: "x", line: { color: theme.surface, width: 1 } },
  };
  const drawn = guides.flatMap(({ kind, ends, band, crossedAt }, index): object[] => {
    if (kind === "oom") return [];
    const [[start, first], [stop, last]] = ends;
    const inUnit = (bytes: number[]) => bytes.map((each) => Math.max(0, each) / unit.divisor);
    if (kind === "budget") {
      if (crossedAt === null) return [];
      const marker = { color: PEAK, size: 8, symbol: "triangle-up", line: { width: 0 } };
      const mark = { ...TRACE, mode: "markers", x: [crossedAt], y: inUnit([last]), marker };
      return [{ ...mark, uid: `crossing-${index}` }];
    }
    const edge = [first + band[0], last + band[1], last - band[1], first - band[0]];
    const area = { ...TRACE, mode: "none", x: [start, stop, stop, start], y: inUnit(edge) };
    const line = { ...TRACE, mode: "lines", x: [start, stop], y: inUnit([first, last]) };
    return [
      { ...area, uid: `trend-band-${index}`, fill: "toself", fillcolor: `${PEAK}33` },
      // An outline, which keeps the mark apart from the colour beneath.
      { ...line, uid: `trend-casing-${index}`, line: { color: theme.surface, width: 4 }, opacity: 0.8 },
      { ...line, uid: `trend-${index}`, line: { color: PEAK, width: 1.6 } },
    ];
  });
  return [...drawn, ranOut];
}

/** The budgets' lines. */
export function guideShapes({ guides, unit }: Scene): object[] {
  const budgets = guides.filter(({ kind }) => kind === "budget");
  return budgets.map(({ ends: [[start, first], [stop, last]] }) => ({
    ...{ type: "line", x0: start, x1: stop, y0: first / unit.divisor, y1: last / unit.divisor },
    line: { color: PEAK, width: 1, dash: "6px,4px" },
  }));
}
