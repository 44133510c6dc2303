/** The memory of a training at other batches and lengths, by coefficients from its dry runs. */

import { make, setText } from "./dom.ts";
import { formatBytes, formatCount, formatCounted } from "./format.ts";
import { slider } from "./slider.ts";

/**
 * The data as `view/what_fits.py` writes them; a moment has gradients, fixed bytes, and bytes per token and per pair
 * of tokens.
 */
export interface Variant {
  checkpointing: boolean;
  precision: string;
  held: Record<string, number>;
  moments: [number, number, number, number][];
  low: number;
  high: number;
  off: number;
}

export interface WhatIf {
  batch: number;
  length: number;
  rows: [number, number];
  lengths: [number, number];
  room: number | null;
  spare: number;
  margin: number;
  variants: Variant[];
  /** The label and the colour of each part. */
  parts: Record<string, [string, string]>;
}

export interface Size {
  rows: number;
  length: number;
  checkpointing: boolean;
  precision: string;
}

export interface Answer {
  parts: [string, number][];
  peak: number;
  low: number;
  high: number;
  fits: boolean | null;
  /** Why the figure is unknown; empty if it is known. */
  unknown: string;
}

const FITS = new Map<boolean | null, [string, string]>([
  [true, ["fits", "#009E73"]],
  [null, ["may fit", "#56B4E9"]],
  [false, ["does not fit", "#D55E00"]],
]);
/** The difference between dry runs from which on the figure is called an estimate. */
const SURE = 0.01;
const SMALL = "font-size:12px;margin:6px 0 0;";

export function ownSize({ batch, length, variants }: WhatIf): Size {
  const { checkpointing, precision } = variants[0]!;
  return { rows: batch, length, checkpointing, precision };
}

function variantOf({ variants }: WhatIf, size: Size): Variant | undefined {
  return variants.find((one) => one.checkpointing === size.checkpointing && one.precision === size.precision);
}

/** The peak is at the moment with the most bytes. */
export function answerTo(what: WhatIf, size: Size): Answer {
  const known = variantOf(what, size);
  const { held, moments, low, high } = known ?? what.variants[0]!;
  const tokens = size.rows * size.length;
  const [above, gradients] = moments
    .map(([own, fixed, perToken, perPair]): [number, number] => [
      fixed + perToken * tokens + perPair * tokens * size.length,
      own,
    ])
    .reduce((most, one) => (one[0] > most[0] ? one : most));
  const complete = Math.min(gradients, above);
  const parts = Object.entries({ ...held, gradients: complete, activations: above - complete });
  const peak = parts.reduce((sum, [, bytes]) => sum + bytes, 0);
  const least = low * peak;
  const most = high * peak;
  const { room, spare, margin } = what;
  const isWithin = room !== null && most * margin <= room;
  const fits = isWithin ? true : room !== null && least > room + spare ? false : null;
  return { parts, peak, low: least, high: most, fits, unknown: whyUnknown(what, size, known) };
}

function whyUnknown({ rows, lengths }: WhatIf, size: Size, known: Variant | undefined): string {
  if (!known) return "no dry run was made of these together";
  const within = (value: number, [from, to]: [number, number]) => from <= value && value <= to;
  if (!within(size.rows, rows)) return `dry runs had ${rows[0]} to ${formatCounted(rows[1], "row")}`;
  if (within(size.length, lengths)) return "";
  return `dry runs had rows of ${formatCount(lengths[0])} to ${formatCounted(lengths[1], "token")}`;
}

/** A step that fits the length, for the arrow keys. */
export function stepOf(length: number): number {
  let step = 1;
  while (step * 64 <= length && length % (step * 2) === 0) step *= 2;
  return step;
}

/** Adds controls and a bar above the table in `host`, which is for pages without scripts. */
export function drawWhatIf(host: HTMLElement, what: WhatIf): void {
  const size = ownSize(what);
  const own = { ...size };
  const reply = make("div", "", { role: "status", style: "margin:8px 0 4px;font-size:15px;min-height:22px" });
  const bar = make("div", "", { role: "img", style: barStyle(false) });
  const keys = make("div", "", { style: `${SMALL}display:flex;flex-wrap:wrap;gap:0 1em` });
  const update = () => {
    const answer = answerTo(what, size);
    setText(reply, sentence(what, size, answer));
    bar.setAttribute("style", barStyle(answer.unknown !== ""));
    drawBar(bar, keys, what, answer);
  };
  const step = stepOf(what.length);
  const first = Math.ceil(what.lengths[0] / 2 / step) * step;
  const last = Math.floor((1.5 * what.lengths[1]) / step) * step;
  const controls = make("div", "", { style: "display:flex;flex-wrap:wrap;gap:6px 24px;align-items:end" }, [
    slider("rows in a batch", size.rows, 1, Math.ceil(1.5 * what.rows[1]), 1, (value) => {
      size.rows = value;
      update();
    }),
    slider("tokens in a row", size.length, first, last, step, (value) => {
      size.length = value;
      update();
    }),
  ]);
  const { variants } = what;
  if (variants.some((one) => one.checkpointing !== own.checkpointing))
    controls.append(
      box("gradient checkpointing", own.checkpointing, (on) => {
        size.checkpointing = on;
        update();
      }),
    );
  const other = variants.find((one) => one.precision !== own.precision)?.precision;
  if (other !== undefined)
    controls.append(
      box(`${other} in place of ${own.precision}`, false, (on) => {
        size.precision = on ? other : own.precision;
        update();
      }),
    );
  update();
  const drawn = make("div", "", { role: "group", "aria-label": "What if" }, [controls, reply, bar, keys]);
  host.prepend(drawn);
  for (const fold of host.querySelectorAll("details")) fold.open = false;
}

function sentence({ room, variants }: WhatIf, size: Size, answer: Answer): string {
  const shape = `Batch ${formatCount(size.rows)} \u00d7 ${formatCount(size.length)}: `;
  if (answer.unknown) return `${shape}not known; ${answer.unknown}.`;
  const [low, peak, high] = [answer.low, answer.peak, answer.high].map((bytes) => formatBytes(bytes));
  const between = low === high ? "" : ` (${low} to ${high})`;
  const known = variants.find(
    (one) => one.checkpointing === size.checkpointing && one.precision === size.precision,
  );
  const about = (known?.off ?? 0) > SURE ? "estimate " : "";
  const verdict = room === null ? "" : `, ${FITS.get(answer.fits)![0]} in ${formatBytes(room)}`;
  return `${shape}peak ${about}${peak}${between}${verdict}.`;
}

function barStyle(isGrey: boolean): string {
  const grey = isGrey ? ";filter:grayscale(1);opacity:.35" : "";
  return `display:flex;position:relative;height:18px;border:1px solid #80808080;forced-color-adjust:none${grey}`;
}

function drawBar(bar: HTMLElement, keys: HTMLElement, what: WhatIf, answer: Answer): void {
  const { parts, peak, fits, unknown } = answer;
  const room = what.room ?? 0;
  const full = Math.max(peak, room) || 1;
  const seen = parts.filter(([, bytes]) => bytes > 0);
  const named = seen.map(([name, bytes]) => {
    const [label, color] = what.parts[name] ?? [name, "#808080"];
    return {
      label: unknown ? label : `${label} ${formatBytes(bytes)}`,
      color,
      share: bytes / full,
      isSmall: bytes < peak / 200,
    };
  });
  bar.setAttribute("aria-label", unknown ? "not known" : named.map(({ label }) => label).join(", "));
  bar.replaceChildren(
    ...named.map(({ label, color, share }) =>
      make("span", "", {
        title: label,
        style: `flex:none;width:${(100 * share).toFixed(2)}%;background:${color};box-shadow:inset -1px 0 #0005`,
      }),
    ),
  );
  if (room > 0 && room < peak) {
    const place = `left:${((100 * room) / full).toFixed(2)}%`;
    bar.append(
      make("span", "", {
        style: `position:absolute;top:-4px;bottom:-4px;border-left:3px solid #D55E00;${place}`,
      }),
    );
  }
  const mark = (color: string, text: string) =>
    make("span", "", {}, [
      make("span", "", { "aria-hidden": "true", style: `color:${color};forced-color-adjust:none` }, [
        "\u25a0",
      ]),
      `\u00a0${text}`,
    ]);
  const shown = named.filter(({ isSmall }) => !isSmall).map(({ color, label }) => mark(color, label));
  const [word, color] = FITS.get(fits)!;
  keys.replaceChildren(
    ...shown,
    ...(room > 0 && !unknown ? [mark(color, `${word} in ${formatBytes(room)}`)] : []),
  );
}

function box(name: string, checked: boolean, onChange: (checked: boolean) => void): HTMLElement {
  const input = make("input", "", { type: "checkbox" });
  input.style.cssText = "width:16px;height:16px;margin:0 6px 0 0;vertical-align:-3px;accent-color:#0072B2";
  input.checked = checked;
  input.addEventListener("change", () => onChange(input.checked));
  return make("label", "", { style: "font-size:12px;min-height:24px" }, [input, name]);
}

const DATA = "data-hfmem-what-if";

/** Draws once for each table of the page that has coefficients; malformed data are ignored. */
export function drawAllWhatIfs(page: ParentNode): void {
  for (const host of page.querySelectorAll<HTMLElement>(`[${DATA}]`)) {
    const text = host.getAttribute(DATA) ?? "";
    host.removeAttribute(DATA);
    try {
      drawWhatIf(host, JSON.parse(text));
    } catch {
      // The table stays as it is.
    }
  }
}
