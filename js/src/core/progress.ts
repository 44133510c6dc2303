/** The progress of a training and its speed, in a place that is always reserved for them. */

import { make, setAttribute, setText } from "./dom.ts";
import { formatCount, formatCounted } from "./format.ts";
import { type Pace, readPace } from "./pace.ts";
import type { Store } from "./store.ts";

/** If there is too little room, items are left out from the end: the most useful comes first. */
const MOST_PARTS = 5;

const SPEED = "The speed includes the time between steps, but not evaluations and saves.";

export class Progress {
  readonly element = make("div", "progress", { title: SPEED });
  private readonly parts = Array.from({ length: MOST_PARTS }, () => make("span", "progress-part"));

  constructor() {
    this.element.append(...this.parts);
  }

  update(store: Store): void {
    const pace = readPace(store);
    const texts = pace === null ? [] : paceTexts(pace);
    const limited = store.status?.limited;
    if (limited !== undefined) texts.push(limited);
    setAttribute(this.element, "title", limited ?? SPEED);
    this.parts.forEach((part, index) => {
      setText(part, texts[index] ?? "");
      part.hidden = index >= texts.length;
    });
  }
}

/** `step 17 of 6,000`, `about 20 s left`, `4.2 steps/s`, `8,600 tokens/s`. */
export function paceTexts({ number, total, count, steps, tokens, left, isOver }: Pace): string[] {
  const average = isOver ? " including the time between steps" : "";
  const speed = steps === null ? [] : [rate(steps)];
  if (tokens !== null) speed.push(`${formatCount(twoDigits(tokens))} tokens/s`);
  if (speed.length > 0) speed.push(speed.pop() + average);
  if (isOver) return [formatCounted(count, "step"), ...speed];
  const place = `step ${formatCount(number)}${total === null ? "" : ` of ${formatCount(total)}`}`;
  return [place, ...(left === null ? [] : [remaining(left)]), ...speed];
}

function rate(steps: number): string {
  return steps < 0.95 ? `${twoDigits(1 / steps)} s/step` : `${twoDigits(steps)} steps/s`;
}

/** Rounded as coarsely as the estimate is known. */
function remaining(seconds: number): string {
  if (seconds < 7.5) return "a few seconds left";
  if (seconds < 57.5) return `about ${5 * Math.round(seconds / 5)} s left`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `about ${minutes < 20 ? minutes : 5 * Math.round(minutes / 5)} min left`;
  const tens = 10 * Math.round(minutes / 10);
  return `about ${Math.floor(tens / 60)} h ${String(tens % 60).padStart(2, "0")} left`;
}

function twoDigits(value: number): number {
  return Number(value.toPrecision(2));
}
