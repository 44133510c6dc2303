/** The places of the words on level lines and at marks. */

import { marksOf } from "./guides.ts";
import type { Box, Size } from "./place.ts";
import {
  bytesToPixel,
  LABEL_PIXELS,
  pixelToTime,
  type Scene,
  timeToPixel,
  WORD_PIXELS,
  type Word,
} from "./scene.ts";

type Drawn = Omit<Scene, "words">;

const PADDING = 6;
const MARK = 6;

/**
 * Out-of-memory marks come first, then budgets; the word of the capacity may be left out, since the headline has it,
 * too.
 */
export function placeWords(scene: Drawn, textWidth: (text: string) => number): Word[] {
  const toPixel = (bytes: number) => bytesToPixel(scene, bytes);
  const budgets = scene.guides.filter(({ kind }) => kind === "budget");
  const levels = budgets.map(({ label, ends, isCrossed }) => ({
    text: label,
    isAlarming: isCrossed,
    bytes: ends[1][1],
  }));
  if (scene.capacity !== null) levels.push({ text: "capacity", isAlarming: false, bytes: scene.capacity });
  const lines = levels.map(({ bytes }) => toPixel(bytes));
  const boxes = marked(scene, toPixel);
  const words: Word[] = [];
  const put = (word: Omit<Word, "box">, places: (size: Size) => Box[], isBetter = (_: Box) => true) => {
    const width = (textWidth(word.text) * WORD_PIXELS) / LABEL_PIXELS + PADDING;
    const isFree = (place: Box) =>
      place.top >= 0 && !boxes.some(overlaps(place)) && !lines.some(runsThrough(place));
    const free = places({ width, height: WORD_PIXELS + 3 }).filter(isFree);
    const box = free.find(isBetter) ?? free[0];
    if (box === undefined) return;
    boxes.push(box);
    words.push({ ...word, box });
  };
  const mark = marksOf(scene.guides).at(-1);
  if (mark) put({ text: mark.label, isAlarming: true }, (size) => placesAt(mark.ends[1], size, scene));
  for (const { bytes, ...word } of levels) {
    const isClear = (place: Box) => !(allocatedUnder(place, scene) > bytes);
    put(word, (size) => placesFor(toPixel(bytes), size, scene.width), isClear);
  }
  return words;
}

/** Below the mark, since the peak's label is above the data; otherwise further below, or above. */
function placesAt([time, bytes]: readonly [number, number], { width, height }: Size, scene: Drawn): Box[] {
  const left = Math.max(0, Math.min(timeToPixel(scene, time) - width / 2, scene.width - width));
  const y = bytesToPixel(scene, bytes);
  const tops = [y + MARK + 1, y + MARK + 1 + height, y - MARK - 1 - height];
  const within = tops.filter((top) => top + height <= scene.height - scene.lanesHeight);
  return within.map((top) => ({ left, top, width, height }));
}

/** On the line or beneath it, at its end or at its beginning; the best place first. */
function placesFor(line: number, { width, height }: Size, plotWidth: number): Box[] {
  return [line - height - 1, line + 1].flatMap((top) =>
    [plotWidth - width, 0].map((left) => ({ left, top, width, height })),
  );
}

/** The boxes that no word may cover: the peak with its label, and the marks. */
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

/** The highest allocated bytes where a word may be placed. */
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
