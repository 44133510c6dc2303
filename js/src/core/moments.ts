/** The lines that held memory at a moment of a timeline, chosen by a click on its picture or by a slider. */

import { make, setText } from "./dom.ts";
import { formatBytes, formatCount, formatCounted, formatDuration, formatShare, MIB } from "./format.ts";
import { inflate } from "./inflate.ts";
import { slider } from "./slider.ts";

/** A name, the text of its line, its colour, and its bytes at each moment. */
export type Band = [string, string, string, number[]];

/** The data as `features/stacks/html.py` writes them, the lowest band first. */
export interface Held {
  /** Seconds; numbers of events if `isTimed` is false. */
  moments: number[];
  isTimed: boolean;
  bands: Band[];
}

/** Smaller sizes are given in bytes. */
const FEW = 0.1 * MIB;
const HINT = "Click the picture or move the slider to see what was allocated at that moment.";
const SAID = "margin:2px 0 4px;font-size:12px;overflow-wrap:anywhere";
const CURSOR = "position:absolute;top:0;border-left:2px solid #D55E00;pointer-events:none;margin-left:-1px";
const TABLE =
  "border-collapse:collapse;table-layout:auto;border:0;margin:0;font-size:12px;color:inherit;width:100%;max-width:680px";
const NAME =
  "padding:2px 0 2px 1.2em;text-indent:-1.2em;text-align:left;font-weight:normal;overflow-wrap:anywhere";
const FIGURE = "padding:2px 0 2px 16px;text-align:right;white-space:nowrap";

/** The last moment that is not after `at`, which is drawn until the next one. */
export function momentAt({ moments }: Held, at: number): number {
  return Math.max(0, moments.filter((moment) => moment <= at).length - 1);
}

/** The bands that are not empty, the largest first. */
export function heldAt({ bands }: Held, moment: number): [Band, number][] {
  const held = bands.map((band): [Band, number] => [band, band[3][moment]!]);
  return held.filter(([, bytes]) => bytes > 0).sort(([, one], [, other]) => other - one);
}

/** Adds a slider below the picture in `host`, and handles clicks on the picture. */
export function drawMoments(host: HTMLElement, held: Held): void {
  const { moments, bands, isTimed } = held;
  const totals = moments.map((_, moment) => bands.reduce((sum, band) => sum + band[3][moment]!, 0));
  const first = Math.min(0, moments[0]!);
  const span = moments.at(-1)! - first;
  const picture = host.querySelector("svg")!;
  const frame = picture.parentElement!;
  const reply = make("div", "", { role: "status", style: SAID }, [HINT]);
  const rows = make("tbody", "");
  const cursor = make("div", "", { style: CURSOR });
  cursor.style.height = picture.querySelector("svg")!.style.height;
  let marked = "";

  // Enough decimals to tell neighbouring moments apart.
  const say = (moment: number) => {
    const at = moments[moment]!;
    if (!isTimed) return formatCounted(at, "event");
    return span < 60 ? `${Math.max(0, at).toFixed(3)} s` : formatDuration(at);
  };
  const show = (moment: number) => {
    const total = totals[moment]!;
    const list = heldAt(held, moment);
    const of = list.find(([[, , color]]) => color === marked);
    const share = of ? `, ${sizeText(of[1])} (${formatShare(of[1] / total)}) of it from ${of[0][0]}` : "";
    const when = isTimed ? `${say(moment)} after the start` : `After ${say(moment)}`;
    setText(reply, `${when}: ${sizeText(total)} allocated${share}.`);
    rows.replaceChildren(...list.map(([band, bytes]) => row(band, bytes, total)));
    cursor.style.left = `${(100 * (moments[moment]! - first)) / span}%`;
    frame.append(cursor);
    mark(rows, marked);
    if (host.nextElementSibling) mark(host.nextElementSibling, marked);
  };

  const highest = totals.indexOf(Math.max(...totals));
  const control = slider("after", highest, 0, moments.length - 1, 1, show, say);
  const input = control.querySelector("input")!;
  frame.style.position = "relative";
  picture.style.cursor = "pointer";
  picture.addEventListener("click", ({ target, clientX }) => {
    const { left, width } = picture.getBoundingClientRect();
    const fill = (target as Element).getAttribute("fill");
    marked = bands.find(([, , color]) => color === fill)?.[2] ?? "";
    const below = host.nextElementSibling;
    if (marked && below instanceof HTMLDetailsElement) below.open = true;
    input.value = `${momentAt(held, first + (span * (clientX - left)) / width)}`;
    input.dispatchEvent(new Event("input"));
  });
  const table = make("table", "", { style: TABLE }, [rows]);
  const label = { role: "group", "aria-label": "What was allocated at a moment", style: "margin:0 0 8px" };
  host.append(make("div", "", label, [make("div", "", { style: "display:flex" }, [control]), reply, table]));
}

function row([name, source, color]: Band, bytes: number, total: number): HTMLElement {
  const square = make(
    "span",
    "",
    { "aria-hidden": "true", style: `color:${color};forced-color-adjust:none` },
    ["\u25a0"],
  );
  const text = source ? `\u00a0${name}  ${source}` : `\u00a0${name}`;
  return make("tr", "", { style: "background:none" }, [
    make("th", "", { scope: "row", style: NAME }, [square, text]),
    make("td", "", { style: `${FIGURE};font-weight:600` }, [sizeText(bytes)]),
    make("td", "", { style: FIGURE }, [formatShare(bytes / total)]),
  ]);
}

/** Marks the row of a table whose square has a colour, and no other. */
function mark(within: Element, color: string): void {
  for (const one of within.querySelectorAll("tr")) {
    const style = one.querySelector("th span")?.getAttribute("style") ?? "";
    const isMarked = color !== "" && style.includes(`color:${color}`);
    one.toggleAttribute("data-marked", isMarked);
    one.style.background = isMarked ? "#8883" : "none";
    one.style.outline = isMarked ? "2px solid #0072B2" : "";
  }
}

function sizeText(bytes: number): string {
  return bytes > 0 && bytes < FEW ? `${formatCount(bytes)} B` : formatBytes(bytes);
}

const DATA = "data-hfmem-moments";

/** Draws once for each picture of the page that has data; malformed data are ignored. */
export async function drawAllMoments(page: ParentNode): Promise<void> {
  for (const host of page.querySelectorAll<HTMLElement>(`[${DATA}]`)) {
    const text = host.getAttribute(DATA) ?? "";
    host.removeAttribute(DATA);
    try {
      drawMoments(host, JSON.parse(new TextDecoder().decode(await inflate(text))));
    } catch {
      // The picture and the tables stay as they are.
    }
  }
}
