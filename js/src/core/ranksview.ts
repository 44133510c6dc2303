/** Below the chart of all ranks: ranks by time, the ranks with a flag, and the phases compared. */

import { make, setAttribute, setText } from "./dom.ts";
import { formatDuration, formatShare } from "./format.ts";
import { FULL_CELL, highestCell, MOST_ROWS, type Ranks, SILENT_CELL } from "./ranks.ts";
import {
  aboutRows,
  type Cells,
  cellColor,
  fullOf,
  heightOf,
  phaseCells,
  rankCells,
  sideWords,
} from "./rankwords.ts";
import { pixelToTime, type Scene } from "./scene.ts";

const EMPTY = -1;
const RAMP = Array.from({ length: 11 }, (_, at) => `rgb(${cellColor((at * FULL_CELL) / 10).join(",")})`);

type Frame = Pick<Scene, "range" | "width">;

export class RanksView {
  readonly element: HTMLElement;
  private readonly inside: HTMLElement[];
  private readonly full = make("span", "ranks-full");
  private readonly about = make("span", "ranks-about");
  private readonly canvas = make("canvas", "ranks-cells", { role: "img" });
  private readonly side = make("div", "ranks-side", { "aria-hidden": "true" });
  private readonly strip = make("div", "ranks-strip", {}, [this.side, this.canvas]);
  private readonly ranks = new Table("ranks worth a look");
  private readonly phases = new Table("phases compared");
  private drawn: { ranks: Ranks; key: string } | null = null;

  constructor() {
    const ramp = make("span", "ranks-ramp");
    ramp.style.background = `linear-gradient(to right, ${RAMP.join(",")})`;
    const silent = make("span", "ranks-silent");
    silent.style.background = `rgb(${cellColor(SILENT_CELL).join(",")})`;
    const key = make("span", "ranks-key", {}, ["0 %", ramp, this.full, silent, "silent"]);
    const head = make("div", "ranks-head", {}, [make("strong", "", {}, ["ranks × time"]), this.about, key]);
    const tables = make("div", "ranks-tables", {}, [this.ranks.element, this.phases.element]);
    this.element = make("div", "ranks", { hidden: "" });
    this.inside = [head, this.strip, tables];
    this.canvas.addEventListener("pointermove", (event) => this.read(event));
  }

  /** `ranks` is null while another device is shown. */
  update(ranks: Ranks | null, frame: Frame | null, elapsed: number): void {
    this.element.hidden = ranks === null || ranks.world < 2;
    if (ranks === null || this.element.hidden) return;
    // The page of a run without ranks has none of these elements.
    if (this.element.childElementCount === 0) this.element.append(...this.inside);
    const key = JSON.stringify([frame?.range, frame?.width, Math.floor(elapsed)]);
    if (this.drawn?.ranks === ranks && this.drawn.key === key) return;
    if (this.drawn?.ranks !== ranks) this.write(ranks);
    this.drawn = { ranks, key };
    this.frame = frame;
    if (frame !== null) paint(this.canvas, ranks, frame, elapsed);
  }

  private frame: Frame | null = null;

  private write(ranks: Ranks): void {
    const rows = ranks.strip.first.length;
    setText(this.full, formatShare(fullOf(ranks.strip.cells) / FULL_CELL));
    setText(this.about, rows === 0 ? "" : aboutRows(ranks));
    this.strip.style.height = `${heightOf(rows || Math.min(64, ranks.world))}px`;
    setAttribute(this.canvas, "aria-label", `how full the device of each rank was, ${aboutRows(ranks)}`);
    const words = sideWords(ranks).map(({ row, text, isWorst }) => {
      const word = make("span", isWorst ? "ranks-word ranks-worst" : "ranks-word", {}, [text]);
      word.style.top = `${(100 * (row + 0.5)) / rows}%`;
      return word;
    });
    this.side.replaceChildren(...words);
    const flags = ranks.table.map(({ flag }) => flag !== "");
    const titles = ranks.table.map(({ host, device }) => [host, device].filter(Boolean).join(" · "));
    this.ranks.update(rankCells(ranks), { flags, titles, least: Math.min(MOST_ROWS, ranks.world) });
    this.phases.update(ranks.phases.length > 0 ? phaseCells(ranks) : { heads: [], rows: [] });
  }

  private read(event: PointerEvent): void {
    const { ranks } = this.drawn ?? { ranks: null };
    if (ranks === null || this.frame === null || ranks.strip.first.length === 0) return;
    const box = this.canvas.getBoundingClientRect();
    const { first, at, cells } = ranks.strip;
    const row = Math.min(
      first.length - 1,
      Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * first.length)),
    );
    const time = pixelToTime(this.frame, ((event.clientX - box.left) / box.width) * this.frame.width);
    const column = at.filter((begin) => begin <= time).length - 1;
    const cell = cells[column * first.length + row];
    const last = (first[row + 1] ?? ranks.world) - 1;
    const who = last > first[row]! ? `ranks ${first[row]} to ${last}` : `rank ${first[row]}`;
    const what = cell === undefined ? "" : cell === SILENT_CELL ? "silent" : formatShare(cell / FULL_CELL);
    setAttribute(this.canvas, "title", what && `${who} at ${formatDuration(time)}: ${what}`);
  }
}

/** The picture has one pixel for each column and row; the page stretches it. */
function paint(canvas: HTMLCanvasElement, { strip }: Ranks, frame: Frame, elapsed: number): void {
  const rows = strip.first.length;
  const width = Math.max(1, Math.round(frame.width));
  const context = rows > 0 ? canvas.getContext("2d") : null;
  if (!context) return;
  canvas.width = width;
  canvas.height = rows;
  const full = fullOf(strip.cells);
  const inks = Array.from({ length: 256 }, (_, cell) => cellColor(cell, full));
  const image = context.createImageData(width, rows);
  let from = 0;
  for (let x = 0; x < width; x++) {
    const [start, stop] = [pixelToTime(frame, x), pixelToTime(frame, x + 1)];
    while (from + 1 < strip.at.length && strip.at[from + 1]! <= start) from++;
    if (strip.at.length === 0 || strip.at[from]! > stop || start > elapsed) continue;
    let to = from + 1;
    while (to < strip.at.length && strip.at[to]! < stop) to++;
    for (let row = 0; row < rows; row++) {
      let cell = EMPTY;
      for (let column = from; column < to; column++) {
        const next = strip.cells[column * rows + row]!;
        cell = cell === EMPTY ? next : highestCell(cell, next);
      }
      if (cell === EMPTY) continue;
      image.data.set([...inks[cell]!, 255], 4 * (row * width + x));
    }
  }
  context.putImageData(image, 0, 0);
}

interface Marks {
  flags?: boolean[];
  titles?: string[];
  /** The number of rows whose room is reserved, so that nothing below moves. */
  least?: number;
}

class Table {
  readonly element: HTMLElement;
  private readonly head = make("tr", "");
  private readonly body = make("tbody", "");
  private heads = "";

  constructor(label: string) {
    const table = make("table", "ranks-table", { "aria-label": label }, [
      make("thead", "", {}, [this.head]),
      this.body,
    ]);
    this.element = make("div", "ranks-part", {}, [table]);
  }

  update({ heads, rows }: Cells, { flags = [], titles = [], least = 0 }: Marks = {}): void {
    this.element.hidden = heads.length === 0;
    this.element.style.setProperty("--hfmem-rows", String(1 + Math.max(least, rows.length)));
    if (heads.join("\n") !== this.heads || this.body.childElementCount !== rows.length)
      this.rebuild(heads, rows);
    rows.forEach((cells, at) => {
      const row = this.body.children[at]!;
      row.classList.toggle("hfmem-ranks-flagged", flags[at] === true);
      setAttribute(row, "title", titles[at] ?? "");
      cells.forEach((text, column) => {
        setText(row.children[column]!, text);
      });
    });
  }

  private rebuild(heads: string[], rows: string[][]): void {
    this.heads = heads.join("\n");
    const named = heads.map((head) => ({ "data-hfmem-column": head.split(",")[0] || "note" }));
    this.head.replaceChildren(
      ...heads.map((head, at) => make("th", "", { scope: "col", ...named[at] }, [head])),
    );
    this.body.replaceChildren(
      ...rows.map(() =>
        make(
          "tr",
          "",
          {},
          heads.map((_, at) => make("td", "", named[at])),
        ),
      ),
    );
  }
}
