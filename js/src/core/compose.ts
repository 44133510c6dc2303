/** The scene of a store: ranges, points, bars, gaps and labels. A pure function. */

import { growingEnd, niceTop, tickCount, valueTicks } from "./axis.ts";
import { type Drawn, decimate } from "./decimate.ts";
import { folded, foldOf } from "./fold.ts";
import { MIB, percentOf, unitFor } from "./format.ts";
import { gapsWithin } from "./gaps.ts";
import { guidesIn, levelsOf, marksOf } from "./guides.ts";
import { layLanes } from "./lanes.ts";
import { keptOn, knowsParts, READ } from "./parts.ts";
import { findPeak, type Peak } from "./peak.ts";
import { placeLabel } from "./place.ts";
import { peakNames } from "./rankwords.ts";
import {
  bytesToPixel,
  LABEL_PIXELS,
  LANE_PIXELS,
  type Line,
  pixelToTime,
  type Scene,
  timeToPixel,
} from "./scene.ts";
import { isAside, LINES, type LineName, leastOf, lookOf, OVERVIEW, overRanks, SERIES } from "./series.ts";
import { isHidden, type Range, type Settings } from "./settings.ts";
import { stackOf } from "./stack.ts";
import type { Store } from "./store.ts";
import { placeWords } from "./words.ts";

const LANE_GAP = 6;
/** A lower chart has no lanes. */
const LEAST_HEIGHT_FOR_LANES = 130;
const CAPACITY_FROM = 0.6;
const DEVICE_USED_UP_TO = 2;
const GAP_INTERVALS = 3;

/** The values of the last scene that the next one keeps, so that it does not jump. */
export interface Hold {
  key: string;
  top: number;
  end: number;
  lanes: number;
}

export interface SceneInput {
  store: Store;
  settings: Settings;
  now: number;
  width: number;
  height: number;
  textWidth(text: string): number;
}

const isHaze = (metric: LineName) => SERIES[metric].drawn === "haze";
/** In the order of drawing: the haze is below all other lines. */
const DRAWN = [...LINES].sort((a, b) => Number(isHaze(b)) - Number(isHaze(a)));

export function composeScene(given: SceneInput, hold: Hold): Scene {
  // The strip of ranks is drawn beside the chart, over its own time.
  const fold = given.store.ranks === null ? foldOf(given.store.spans.values(), given.now) : null;
  const input =
    fold === null ? given : { ...given, store: folded(given.store, fold), now: fold.toAxis(given.now) };
  const { store, settings, now, width, height } = input;
  const device = store.schema?.devices.find(({ key }) => key === settings.device);
  const isRunning = store.status?.state === "running";
  keepOrRelease(hold, store, settings, isRunning);

  const range = rangeOf(settings, now, isRunning, hold);
  const view = { device: settings.device, now, range, pixels: width };
  const bars = height < LEAST_HEIGHT_FOR_LANES ? [] : layLanes(store.spans.values(), store.steps, view);
  const laneCount = Math.max(hold.lanes, ...bars.map((bar) => bar.lane + 1));
  hold.lanes = laneCount;
  const lanesHeight = laneCount === 0 ? 0 : laneCount * LANE_PIXELS + LANE_GAP;
  const plotHeight = height - lanesHeight;

  const { x, lines, bands } = drawnLines(input, range);
  const peak = settings.hidden.has("allocated") ? null : findPeak(store, settings.device);
  const marked = peak !== null && peak.time >= range[0] && peak.time <= range[1] ? peak : null;
  const highest = Math.max(marked?.bytes ?? 0, ...lines.map((line) => maximum(line.values)));
  const allocated = Math.max(marked?.bytes ?? 0, maximum(valuesOf(lines, "allocated")));
  const guides = guidesIn(store, settings, { range, now, allocated });
  const total = device?.total ?? null;
  const capacity = total !== null && highest >= CAPACITY_FROM * total ? total : null;

  const room = 1 - (LABEL_PIXELS + 14) / plotHeight;
  hold.top = topFor(
    Math.max(highest, capacity ?? 0, ...levelsOf(guides), ...marksOf(guides).map(({ ends }) => ends[1][1])),
    marked ? room : 0.94,
    hold.top,
    settings.percent ? total : null,
  );
  const unit = settings.percent && total !== null ? percentOf(total) : unitFor(hold.top);
  const ticks = valueTicks(hold.top / unit.divisor, tickCount(plotHeight));
  const startedAt = store.schema?.started_at ?? 0;
  const axes = { range, fold, startedAt, width, height, lanesHeight, laneCount, unit, ticks, top: hold.top };
  const scene = { ...axes, bars, x, lines, bands, capacity, guides };
  const gaps = gapsWithin(store.timeline, range, GAP_INTERVALS * (store.status?.interval ?? 0));
  const labelled = { ...scene, gaps, peak: marked && withLabel(marked, scene, input) };
  return { ...labelled, words: placeWords(labelled, input.textWidth) };
}

/** Axes stay while the settings stay the same, and are fitted again otherwise. */
function keepOrRelease(hold: Hold, store: Store, settings: Settings, isRunning: boolean): void {
  const { device, window, zoom, percent, hidden, asked } = settings;
  const key = JSON.stringify([store.run, device, window, zoom, percent, [...hidden, ...asked], isRunning]);
  if (key === hold.key) return;
  hold.key = key;
  hold.top = 0;
  hold.end = 0;
  hold.lanes = 0;
}

function rangeOf(settings: Settings, now: number, isRunning: boolean, hold: Hold): Range {
  if (settings.zoom) return settings.zoom;
  if (settings.window !== null && now > settings.window) return [now - settings.window, now];
  if (!isRunning || settings.paused) return [0, Math.max(now, 0.001)];
  hold.end = Math.max(hold.end, growingEnd(now));
  return [0, settings.window === null ? hold.end : Math.min(hold.end, settings.window)];
}

function drawnLines(
  { store, settings, width }: SceneInput,
  range: Range,
): Pick<Scene, "x" | "lines" | "bands"> {
  const known = <Metric extends string>(metrics: readonly Metric[]) =>
    metrics
      .map((metric) => ({ metric, column: store.columnOf(settings.device, metric) }))
      .filter(({ column }) => column >= 0 && column < store.timeline.columns.length);
  const worst = store.ranks?.table[0]?.rank ?? null;
  const all =
    settings.device === OVERVIEW
      ? overRanks(
          known(LINES).map(({ metric }) => metric),
          worst,
        )
      : DRAWN;
  const shown = known(all).filter(({ metric }) => !isHidden(settings, metric));
  const allocated = shown.find(({ metric }) => metric === "allocated")?.column;
  const isSplit = settings.parts && allocated !== undefined && knowsParts(store, settings.device);
  const parts = isSplit ? known(READ) : [];
  const columns = [...shown, ...parts].map(({ column }) => column);
  const drawn: Drawn = decimate(store.timeline, columns, range, width, {
    leads: columns.map((column, index) => (index < shown.length ? column : allocated!)),
    // The uppermost band has no column of its own.
    lines: columns.length + (isSplit ? 1 : 0),
  });
  const lines = shown
    .map(({ metric }, index) => ({ metric, look: lookOf(settings.device, metric), values: drawn.y[index]! }))
    .filter(({ look, values }) => maximum(values) >= leastOf(look));
  const read = parts.map(({ metric }, index) => [metric, drawn.y[shown.length + index]!]);
  if (isSplit) read.push(["kept", Float32Array.from(drawn.x, keptOn(store, settings.device))]);
  const bands = isSplit ? stackOf(valuesOf(lines, "allocated"), Object.fromEntries(read)) : [];
  const own = Math.max(0, ...lines.filter(({ metric }) => !isHaze(metric)).map((l) => maximum(l.values)));
  const isLed = own === 0 && store.status?.lead !== undefined;
  const fits = (line: Line) =>
    !isHaze(line.metric) ||
    isLed ||
    isAside(settings.device, line.metric) ||
    (own > 0 && maximum(line.values) <= DEVICE_USED_UP_TO * own);
  return { x: drawn.x, lines: lines.filter(fits), bands };
}

function valuesOf(lines: Line[], metric: string): Float32Array {
  return lines.find((line) => line.metric === metric)?.values ?? new Float32Array(0);
}

/** The axis grows in round steps, and only if the data leave too little room. */
function topFor(highest: number, room: number, held: number, total: number | null): number {
  if (held > 0 && highest <= held * room) return held;
  const least = (highest >= 1 ? highest : MIB) / room;
  const { divisor } = total === null ? unitFor(least) : percentOf(total);
  return niceTop(least / divisor) * divisor;
}

function withLabel(
  peak: Peak,
  scene: Omit<Scene, "gaps" | "peak" | "words">,
  { store, settings, textWidth }: SceneInput,
) {
  const { capacity, ticks, unit } = scene;
  const ranks = settings.device === OVERVIEW ? store.ranks : null;
  const names = peakNames(ranks, peak, unit.name === "%" ? unit : undefined);
  const text = names.find((name) => textWidth(name) + 6 <= scene.width) ?? names.at(-1)!;
  const toPixel = (bytes: number) => bytesToPixel(scene, bytes);
  const skyline = (left: number, right: number) =>
    toPixel(highestWithin(scene, pixelToTime(scene, left), pixelToTime(scene, right)));
  const point = { x: timeToPixel(scene, peak.time), y: toPixel(peak.bytes) };
  const size = { width: textWidth(text) + 6, height: LABEL_PIXELS + 3 };
  const levels = [...levelsOf(scene.guides), ...(capacity === null ? [] : [capacity])].map(toPixel);
  const gridLines = ticks.values.map((value) => toPixel(value * unit.divisor));
  const place = (lines: number[]) => placeLabel(point, size, { width: scene.width, lines, skyline });
  const top = {
    left: Math.min(Math.max(0, point.x - size.width / 2), scene.width - size.width),
    top: 0,
    ...size,
  };
  return { ...peak, text, box: place([...levels, ...gridLines]) ?? place(levels) ?? top };
}

function highestWithin(scene: Pick<Scene, "x" | "lines">, start: number, stop: number): number {
  let highest = 0;
  for (let index = 0; index < scene.x.length; index++) {
    // One neighbour at each side is included, since lines continue beyond the edges.
    if ((scene.x[index + 1] ?? Number.POSITIVE_INFINITY) < start || (scene.x[index - 1] ?? 0) > stop)
      continue;
    for (const line of scene.lines) if (line.values[index]! > highest) highest = line.values[index]!;
  }
  return highest;
}

function maximum(values: Float32Array): number {
  let highest = 0;
  for (const value of values) if (value > highest) highest = value;
  return highest;
}
