/** The text at the pointer: the value or the bar under it, or that nothing was sampled there. */

import type { Bar } from "./bar.ts";
import { formatBytes, formatChange, formatClock, formatCount, formatDuration } from "./format.ts";
import { guideAt, marksOf } from "./guides.ts";
import { shortName, shownParts } from "./parts.ts";
import { peakText } from "./peak.ts";
import { labelOf, partsAt } from "./readings.ts";
import { LANE_PIXELS, type Line, pixelToTime, type Scene, timeToPixel } from "./scene.ts";
import { SERIES, SINGLY } from "./series.ts";
import type { Range } from "./settings.ts";
import type { Store } from "./store.ts";
import type { TipText } from "./tip.ts";

/** Values under one pixel that differ by a smaller share of the axis are shown as one. */
const SPREAD = 0.02;
/** The greatest distance of a mark from the pointer, in pixels. */
const MARK_PIXELS = 5;

/** The bar at a point of the drawing area; the worst step comes before its group. */
export function barAt(scene: Scene, x: number, y: number): Bar | null {
  if (y >= scene.laneCount * LANE_PIXELS || scene.laneCount === 0) return null;
  const lane = Math.floor(y / LANE_PIXELS);
  const slack = 2;
  const hits = scene.bars.filter((bar) => {
    const left = timeToPixel(scene, bar.start);
    return (
      bar.lane === lane && x >= left - slack && x <= Math.max(left + slack, timeToPixel(scene, bar.stop))
    );
  });
  return hits.find((bar) => bar.worst) ?? hits.at(-1) ?? null;
}

export function readBar(bar: Bar, scene: Pick<Scene, "fold">): TipText {
  const duration = formatDuration(secondAt(scene, bar.stop) - secondAt(scene, bar.start));
  if (bar.steps !== undefined) return readSteps(bar, bar.steps, duration);
  const rows: [string, string][] = [["duration", duration + (bar.open ? " so far" : "")]];
  if (bar.change !== null) rows.push(["Δ allocated", formatChange(bar.change)]);
  if (bar.peak !== null)
    rows.push([bar.count > 1 ? "worst peak" : "peak", peakText(bar.peak, bar.certainty)]);
  if (bar.outcome !== "" && bar.outcome !== "done") rows.push(["outcome", bar.outcome]);
  return { title: bar.worst ? `${bar.label} · the worst` : bar.label, rows };
}

function readSteps(bar: Bar, steps: NonNullable<Bar["steps"]>, duration: string): TipText {
  const { memory, tokens, samples, longest } = steps;
  const rows: [string, string][] = [["duration", duration]];
  const shape = `${formatCount(samples)} × ${formatCount(longest)}`;
  const isOne = bar.count === 1;
  if (tokens > 0) {
    const hasShape = isOne && samples > 0 && longest > 0;
    rows.push(["tokens", formatCount(tokens) + (hasShape ? ` (${shape})` : "")]);
  }
  if (memory !== null && !isOne && memory.worst > 0) {
    const batch = memory.worstTokens > 0 ? `, ${formatCount(memory.worstTokens)} tokens` : "";
    rows.push(["worst", `step ${memory.worst}${batch}`]);
  }
  if (memory !== null) {
    rows.push([isOne || memory.worst === 0 ? "peak" : "its peak", peakText(memory.peak, memory.certainty)]);
    for (const phase of isOne ? (["forward", "backward", "optimizer"] as const) : []) {
      if (memory[phase] > 0) rows.push([`in ${phase}`, formatBytes(memory[phase])]);
    }
  }
  return { title: bar.worst ? `${bar.label} · the worst` : bar.label, rows };
}

export function readTime(store: Store, device: string, scene: Scene, x: number): TipText | null {
  const { timeline } = store;
  const drawn = pixelToTime(scene, x);
  const time = secondAt(scene, drawn);
  if (timeline.length === 0 || time < timeline.time[0]! || time > timeline.last) return null;
  const gap = scene.gaps.find(({ start, stop }) => drawn > start && drawn < stop);
  if (gap) {
    const seconds = secondAt(scene, gap.stop) - secondAt(scene, gap.start);
    return { title: `no samples for ${formatDuration(seconds)}`, rows: [] };
  }
  const around = [x - 1, x + 1].map((pixel) => secondAt(scene, pixelToTime(scene, pixel)));
  const [from, to] = rowsAround(store, around as [number, number], time);
  const rows = linesInOrder(scene).flatMap(({ metric }): TipText["rows"] => {
    const column = timeline.columns[store.columnOf(device, metric)];
    column?.scan(from, to);
    const value = spread(column?.low ?? Number.NaN, column?.high ?? Number.NaN, scene.top);
    const inside =
      metric === "allocated" && scene.bands.length > 0 ? readParts(store, device, [from, to]) : [];
    return [[labelOf(store, device, metric), value], ...inside];
  });
  const all = [...rows, ...readGuides(scene, drawn), ...readMarks(scene, x)];
  const at = scene.fold === null ? formatDuration(time) : formatClock(1000 * (scene.startedAt + time));
  return { title: `at ${at}`, rows: all };
}

/** The second since the run began at a place on the axis. */
function secondAt({ fold }: Pick<Scene, "fold">, drawn: number): number {
  return fold === null ? drawn : fold.toTime(drawn);
}

/** The lines from the top down; single ranks by their numbers. */
function linesInOrder({ lines }: Scene): Line[] {
  const singly = SINGLY.flatMap((name) => lines.filter(({ metric }) => metric === name));
  return singly.length > 0 ? singly : [...lines].reverse();
}

function readMarks(scene: Scene, x: number): TipText["rows"] {
  const near = marksOf(scene.guides).filter(
    ({ ends: [[time]] }) => Math.abs(timeToPixel(scene, time) - x) <= MARK_PIXELS,
  );
  // The newest of several marks under the pointer.
  return near.slice(-1).map(({ label, ends: [[, bytes]] }) => {
    const [name, asked] = label.split(": ", 2) as [string, string?];
    return [name, asked ?? `at ${formatBytes(bytes)}`];
  });
}

function readGuides({ guides }: Scene, time: number): TipText["rows"] {
  return guides.flatMap((guide): TipText["rows"] => {
    const bytes = guideAt(guide, time);
    return Number.isNaN(bytes)
      ? []
      : [[guide.kind === "budget" ? "budget" : guide.label, formatBytes(bytes)]];
  });
}

/** The parts from the top down, at the row with the highest allocated memory under the pointer. */
function readParts(store: Store, device: string, [from, to]: Range): TipText["rows"] {
  const row = store.timeline.columns[store.columnOf(device, "allocated")]!.highest(from, to);
  const parts = partsAt(store, device, row);
  return shownParts(parts)
    .reverse()
    .map((name) => [shortName(name), formatBytes(parts[name]), SERIES[name].color]);
}

function rowsAround(store: Store, [start, stop]: Range, time: number): Range {
  const { timeline } = store;
  const from = timeline.firstFrom(start);
  const to = timeline.firstAfter(stop);
  if (to > from) return [from, to];
  const next = Math.min(from, timeline.length - 1);
  const isNearer = next > 0 && time - timeline.time[next - 1]! < timeline.time[next]! - time;
  const nearest = isNearer ? next - 1 : next;
  return [nearest, nearest + 1];
}

function spread(low: number, high: number, top: number): string {
  return high - low > SPREAD * top ? `${formatBytes(low)} – ${formatBytes(high)}` : formatBytes(high);
}
