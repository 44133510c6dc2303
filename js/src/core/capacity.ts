/** The slim bar of a device's capacity: its uses, and what is free. */

import { SHARE } from "./colors.ts";
import { make, setAttribute } from "./dom.ts";
import { formatBytes } from "./format.ts";
import { STACK, shownParts } from "./parts.ts";
import { labelOf, type Readings } from "./readings.ts";
import { SERIES } from "./series.ts";
import type { Store } from "./store.ts";

/** From left to right. Pieces without a colour have the page's own greys, from headline.css. */
const PIECES: { name: string; color?: string; share?: number }[] = [
  { name: "context", color: SERIES.context.color },
  { name: "allocated", color: SERIES.allocated.color },
  ...STACK.map((name) => ({ name, color: SERIES[name].color, share: SHARE })),
  { name: "cache" },
  { name: "other" },
];

export class Capacity {
  private readonly pieces = PIECES.map(({ name, color = "", share = 1 }) => {
    const piece = make("span", `capacity-part capacity-${name}`);
    piece.style.backgroundColor = color;
    piece.style.opacity = `${share}`;
    return piece;
  });
  readonly element = make("div", "capacity", { role: "img" }, this.pieces);

  update(store: Store, readings: Readings): void {
    const { total } = readings;
    this.element.hidden = Number.isNaN(total);
    const pieces = piecesOf(store, readings);
    PIECES.forEach(({ name }, index) => {
      const { bytes } = pieces.find((piece) => piece.name === name) ?? { bytes: 0 };
      this.pieces[index]!.style.width = `${Math.max(0, Math.min(100, (100 * bytes) / total)).toFixed(2)}%`;
    });
    const texts = pieces
      .filter(({ bytes }) => bytes > 0)
      .map(({ text, bytes }) => `${text} ${formatBytes(bytes)}`);
    const text = [...texts, `of ${formatBytes(total)}`].join(" · ");
    setAttribute(this.element, "title", text);
    setAttribute(this.element, "aria-label", text);
  }
}

interface Piece {
  name: string;
  text: string;
  bytes: number;
}

/** The uses of the device in the bar's order, then what is free. */
function piecesOf(store: Store, readings: Readings): Piece[] {
  const { device, parts, total } = readings;
  const [allocated, context] = [readings.allocated || 0, readings.context || 0];
  const own = Math.max(readings.reserved || 0, allocated);
  const other = Math.max(0, (readings.deviceUsed || 0) - own - context);
  const isHost = !device.key.includes(":");
  const label = (metric: string) => labelOf(store, device.key, metric);
  return [
    { name: "context", text: "CUDA context", bytes: context },
    ...(parts === null
      ? [{ name: "allocated", text: label("allocated"), bytes: allocated }]
      : shownParts(parts).map((name) => ({ name, text: SERIES[name].label, bytes: parts[name] }))),
    { name: "cache", text: isHost ? `rest of ${label("reserved")}` : "cache", bytes: own - allocated },
    { name: "other", text: "other use", bytes: other },
    { name: "free", text: "free", bytes: Math.max(0, total - own - context - other) },
  ];
}
