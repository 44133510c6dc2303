/** Memory over time as Plotly's traces: lines, and areas under them. */

import { laidOn, SHARE } from "./colors.ts";
import type { Line, Scene } from "./scene.ts";
import { dashOf, type LineName, SERIES } from "./series.ts";
import type { Band } from "./stack.ts";
import type { Theme } from "./theme.ts";

const TRACE = { type: "scatter", hoverinfo: "skip", connectgaps: false };
/** Turns per pixel above which a line looks like a texture. */
const SPARSE = 0.15;

export function areaTraces(scene: Scene, theme: Theme): object[] {
  return scene.lines.flatMap((line) => lineTraces(line, scene, theme));
}

function lineTraces({ metric, look, values }: Line, scene: Scene, theme: Theme): object[] {
  const isStack = metric === "allocated" && scene.bands.length > 0;
  const { fill, ...style } = isStack ? stackStroke(values, scene, theme) : styleOf(look, theme);
  const points = { x: scene.x, y: inUnit(values, scene) };
  const stroke = { ...TRACE, mode: "lines", uid: metric, ...withoutFlats(points), ...style };
  // From the top down, each area over the one above it: the page would show through between areas side by side.
  if (isStack) return [...[...scene.bands].reverse().map((band) => bandTrace(band, scene, theme)), stroke];
  if (SERIES[look].drawn === "band")
    return [...rangeTraces(values, scene, `${SERIES[look].color}66`), stroke];
  if (fill === undefined) return [stroke];
  const area = areaTrace(points, fill);
  return style.line.width === 0 ? [{ ...area, uid: metric }] : [{ ...area, uid: `${metric}-area` }, stroke];
}

function bandTrace({ part, top }: Band, scene: Scene, theme: Theme): object {
  const color = laidOn(theme.surface, SERIES[part].color, SHARE);
  return { ...areaTrace({ x: scene.x, y: inUnit(top, scene) }, color), uid: `${part}-area` };
}

/** The area between the lowest and the highest rank, in one piece between each two gaps. */
function rangeTraces(lowest: Float32Array, scene: Scene, fillcolor: string): object[] {
  const highest = scene.lines.find(({ metric }) => metric === "allocated")?.values;
  if (highest === undefined) return [];
  const [x, y]: [number[], number[]] = [[], []];
  const put = (at: number, bytes: number) => {
    x.push(scene.x[at] ?? Number.NaN);
    y.push(bytes / scene.unit.divisor);
  };
  const isKnown = (at: number) => !Number.isNaN(lowest[at]! + highest[at]!);
  for (let from = 0; from < lowest.length; from++) {
    if (!isKnown(from)) continue;
    let to = from;
    while (to < lowest.length && isKnown(to)) put(to, highest[to++]!);
    for (let at = to - 1; at >= from; at--) put(at, lowest[at]!);
    put(-1, Number.NaN);
    from = to;
  }
  const points = { x: Float64Array.from(x), y: Float64Array.from(y) };
  return [{ ...TRACE, mode: "none", fill: "toself", fillcolor, uid: "range-area", ...points }];
}

function areaTrace(points: Points, fillcolor: string): object {
  return { ...TRACE, mode: "none", fill: "tozeroy", fillcolor, ...withoutFlats(downToZero(points)) };
}

function inUnit(values: Float32Array, { unit }: Scene): Float64Array {
  return Float64Array.from(values, (bytes) => bytes / unit.divisor);
}

interface Style {
  fill?: string;
  line: { width: number; color?: string; dash?: string };
  opacity?: number;
}

function styleOf(look: LineName, theme: Theme): Style {
  const { drawn, color } = SERIES[look];
  if (drawn === "area") return { fill: `${color}55`, line: { color, width: 1.4 } };
  if (drawn === "haze") return { fill: `${color}38`, line: { width: 0 } };
  if (drawn === "line") return { line: { color, width: 1.5, dash: dashOf(look) } };
  if (drawn === "band") return { line: { color, width: 0.8 } };
  return { line: { color: theme.text, width: 1, dash: "4px,3px" }, opacity: 0.75 };
}

/** A stroke with many turns is fainter, so that the colours beneath it stay visible. */
function stackStroke(values: Float32Array, { width }: Scene, theme: Theme): Style {
  const isTurn = (index: number) =>
    (values[index]! - values[index - 1]!) * (values[index + 1]! - values[index]!) < 0;
  const turns = values.reduce((count, _, index) => count + Number(isTurn(index)), 0);
  const opacity = Math.max(0.2, 0.6 * Math.min(1, (SPARSE * width) / Math.max(1, turns)));
  return { line: { color: theme.text, width: 1 }, opacity };
}

interface Points {
  x: Float64Array;
  y: Float64Array;
}

/** Of a level stretch only the two ends are drawn, since memory is level for most of a run. */
function withoutFlats({ x, y }: Points): Points {
  const isBend = (index: number) => y[index] !== y[index - 1] || y[index] !== y[index + 1];
  const bends = y.reduce((count, _, index) => count + Number(isBend(index)), 0);
  if (bends === y.length) return { x, y };
  return { x: x.filter((_, index) => isBend(index)), y: y.filter((_, index) => isBend(index)) };
}

/** Plotly breaks a line at NaN but fills across it, so an area goes down to zero at each gap. */
function downToZero({ x, y }: Points): Points {
  if (!y.some(Number.isNaN)) return { x, y };
  const area: { x: number[]; y: number[] } = { x: [], y: [] };
  const put = (time: number, value: number) => {
    area.x.push(time);
    area.y.push(value);
  };
  for (let index = 0; index < y.length; index++) {
    const value = y[index]!;
    const isFirst = Number.isNaN(y[index - 1] ?? Number.NaN);
    const isLast = Number.isNaN(y[index + 1] ?? Number.NaN);
    if (Number.isNaN(value)) continue;
    if (isFirst) put(x[index]!, 0);
    put(x[index]!, value);
    if (isLast) put(x[index]!, 0);
  }
  return { x: Float64Array.from(area.x), y: Float64Array.from(area.y) };
}
