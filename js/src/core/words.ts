/** The words on level lines and at marks: what they are called, where nothing else stands. */

import { marksOf } from "./guides.ts";
import type { Box } from "./place.ts";
import {
  bytesToPixel,
  LABEL_PIXELS,
  pixelToTime,
  type Scene,
  timeToPixel,
  WORD_PIXELS,
  type Word,
} from "./scene.ts";

type Level = Omit<Word, "box"> & { bytes: number };
type Drawn = Omit<Scene, "words">;

const PADDING = 6;
const MARK = 6;

/** What ran out first, then budgets: the capacity is a figure among the headings as well, so its word may go. */
export function placeWords(scene: Drawn, textWidth: (text: string) => number): Word[] {
  const toPixel = (bytes: number) => bytesToPixel(scene, bytes);
  const budgets = scene.guides.filter(({ kind }) => kind === "budget");
  const levels: Level[] = budgets.map(({ label, ends, isCrossed }) => ({
    text: label,
    isAlarming: isCrossed,
    bytes: ends[1][1],
  }));
  if (scene.capacity !== null) levels.push({ text: "capacity", isAlarming: false, bytes: scene.capacity });
  const lines = levels.map(({ bytes }) => toPixel(bytes));
  const boxes = marked(scene, toPixel);
  const ranOut = newestMark(scene, lines, boxes, textWidth);
  boxes.push(...ranOut.map(({ box }) => box));
  const named = levels.flatMap(({ text, isAlarming, bytes }) => {
    const width = (textWidth(text) * WORD_PIXELS) / LABEL_PIXELS + PADDING;
    const isFree = (place: Box) =>
      place.top >= 0 && !boxes.some(overlaps(place)) && !lines.some(runsThrough(place));
    const places = placesFor(toPixel(bytes), width, scene.width).filter(isFree);
    const box = places.find((place) => !(allocatedUnder(place, scene) > bytes)) ?? places[0];
    if (box === undefined) return [];
    boxes.push(box);
    return [{ text, isAlarming, box }];
  });
  return [...ranOut, ...named];
}

/** Below the mark, since the peak's label stands above what is drawn; else further below, or above. */
function newestMark(
  scene: Drawn,
  lines: number[],
  boxes: Box[],
  textWidth: (text: string) => number,
): Word[] {
  const mark = marksOf(scene.guides).at(-1);
  if (mark === undefined) return [];
  const { label: text, ends } = mark;
  const width = (textWidth(text) * WORD_PIXELS) / LABEL_PIXELS + PADDING;
  const height = WORD_PIXELS + 3;
  const x = timeToPixel(scene, ends[1][0]);
  const plotHeight = scene.height - scene.lanesHeight;
  const y = bytesToPixel(scene, ends[1][1]);
  const left = Math.max(0, Math.min(x - width / 2, scene.width - width));
  const tops = [y + MARK + 1, y + MARK + 1 + height, y - MARK - 1 - height];
  const within = tops.filter((top) => top >= 0 && top + height <= plotHeight);
  const places = within.map((top): Box => ({ left, top, width, height }));
  const isFree = (place: Box) => !boxes.some(overlaps(place)) && !lines.some(runsThrough(place));
  const box = places.find(isFree);
  return box === undefined ? [] : [{ text, isAlarming: true, box }];
}

/** On the line or beneath it, at its end or at its beginning; the best first. */
function placesFor(line: number, width: number, plotWidth: number): Box[] {
  const height = WORD_PIXELS + 3;
  return [line - height - 1, line + 1].flatMap((top) =>
    [plotWidth - width, 0].map((left) => ({ left, top, width, height })),
  );
}

/** What no word may cover: the peak and its label, and where a budget was crossed or memory ran out. */
function marked(scene: Drawn, toPixel: (bytes: number) => number): Box[] {
  const { peak, guides } = scene;
  const around = (time: number, bytes: number): Box => {
    const [left, top] = [timeToPixel(scene, time) - MARK, toPixel(bytes) - MARK];
    return { left, top, width: 2 * MARK, height: 2 * MARK };
  };
  const budgetCrossings = guides.flatMap(({ crossedAt, ends }) =>
    crossedAt === null ? [] : [around(crossedAt, ends[1][1])],
  );
  const ranOut = marksOf(guides).map(({ ends: [[time, bytes]] }) => around(time, bytes));
  const crossings = [...ranOut, ...budgetCrossings];
  return peak === null ? crossings : [...crossings, peak.box, around(peak.time, peak.bytes)];
}

/** The most that was allocated where a word may stand, in bytes. */
function allocatedUnder({ left, width }: Box, scene: Drawn): number {
  const [start, stop] = [pixelToTime(scene, left), pixelToTime(scene, left + width)];
  const allocated = scene.lines.find(({ metric }) => metric === "allocated")?.values;
  let highest = 0;
  scene.x.forEach((time, at) => {
    if (time >= start && time <= stop) highest = Math.max(highest, allocated?.[at] || 0);
  });
  return highest;
}

function overlaps(one: Box): (two: Box) => boolean {
  return (two) =>
    one.left < two.left + two.width &&
    two.left < one.left + one.width &&
    one.top < two.top + two.height &&
    two.top < one.top + one.height;
}

function runsThrough({ top, height }: Box): (line: number) => boolean {
  return (line) => line > top && line < top + height;
}
