// @vitest-environment jsdom
import { beforeEach, expect, test } from "vitest";
import { answerTo, drawAllWhatIfs, ownSize, stepOf, type WhatIf } from "../src/core/whatif.ts";

const MIB = 2 ** 20;

/** The same as in `tests/unit/view/test_what_fits.py`. */
function example(): WhatIf {
  const own = {
    checkpointing: false,
    precision: "fp32",
    held: { weights: 100 * MIB, optimizer: 200 * MIB },
    moments: [
      [100 * MIB, 110 * MIB, 0, 0],
      [0, 10 * MIB, MIB / 8, MIB / 1024],
    ] as [number, number, number, number][],
    low: 0.9,
    high: 1.1,
    off: 0,
  };
  return {
    batch: 8,
    length: 128,
    rows: [1, 16],
    lengths: [64, 256],
    room: 700 * MIB,
    spare: 0,
    margin: 1,
    variants: [
      own,
      { ...own, checkpointing: true, moments: [[0, 110 * MIB, 0, 0]], off: 0.02 },
      { ...own, precision: "bf16", moments: [[0, 120 * MIB, 0, 0]] },
    ],
    parts: { weights: ["weights", "#0072B2"], optimizer: ["<b>optimizer</b>", "#CC79A7"] },
  };
}

function page(what: WhatIf = example()): HTMLElement {
  const host = document.createElement("div");
  host.dataset.hfmemWhatIf = JSON.stringify(what);
  host.innerHTML = "<details open><summary>a few sizes</summary></details>";
  document.body.replaceChildren(host);
  drawAllWhatIfs(document);
  return host;
}

function input(host: HTMLElement, name: string): HTMLInputElement {
  const label = [...host.querySelectorAll("label")].find((one) => one.textContent?.includes(name));
  return label!.querySelector("input")!;
}

function move(host: HTMLElement, name: string, value: number): void {
  const slider = input(host, name);
  slider.value = `${value}`;
  slider.dispatchEvent(new Event("input"));
}

function toggle(host: HTMLElement, name: string): void {
  input(host, name).click();
}

const said = (host: HTMLElement) => host.querySelector("[role=status]")!.textContent;

beforeEach(() => document.body.replaceChildren());

test.each([
  [8, 128, 566, 0],
  [1, 64, 410, 100],
  [16, 256, 1846, 0],
])("the peak of %d rows of %d tokens is at the moment that takes most", (rows, length, peak, gradients) => {
  const what = example();
  const answer = answerTo(what, { ...ownSize(what), rows, length });

  expect(answer.peak / MIB).toBe(peak);
  expect(Object.fromEntries(answer.parts).gradients! / MIB).toBe(gradients);
});

test("it fits where the whole interval does, and does not where none of it does", () => {
  const at = (rows: number, length: number) =>
    answerTo(example(), { ...ownSize(example()), rows, length }).fits;

  expect([at(8, 128), at(16, 256), at(12, 128)]).toEqual([true, false, null]);
});

test("a slider tells the peak, and folds the table", () => {
  const host = page();
  expect(said(host)).toBe("Batch 8 × 128: peak 566.0 MiB (509.4 MiB to 622.6 MiB), fits in 700.0 MiB.");
  expect(host.querySelector("details")!.open).toBe(false);

  move(host, "rows in a batch", 16);

  expect(said(host)).toContain("Batch 16 × 128: peak 822");
  expect(said(host)).toContain("does not fit");
  expect(host.querySelector("[role=img]")!.getAttribute("aria-label")).toContain("activations 522");
});

test("sizes far from any dry run are grey, with the reason", () => {
  const host = page();
  move(host, "rows in a batch", 17);
  expect(said(host)).toBe("Batch 17 × 128: not known; dry runs had 1 to 16 rows.");
  expect(host.querySelector("[role=img]")!.getAttribute("style")).toContain("grayscale");
  expect(host.querySelector("[role=img]")!.getAttribute("aria-label")).toBe("not known");
  expect(host.textContent).not.toContain("activations 5");

  move(host, "rows in a batch", 8);
  move(host, "tokens in a row", 320);
  expect(said(host)).toContain("not known; dry runs had rows of 64 to 256 tokens");

  move(host, "tokens in a row", 128);
  toggle(host, "checkpointing");
  toggle(host, "bf16");
  expect(said(host)).toContain("no dry run was made of these together");
});

test("a switch has the peak of its own dry runs, and an estimate says so", () => {
  const host = page();
  toggle(host, "gradient checkpointing");

  expect(said(host)).toContain("peak estimate 410");
});

test("without a known room there is no verdict", () => {
  expect(said(page({ ...example(), room: null }))).toBe(
    "Batch 8 × 128: peak 566.0 MiB (509.4 MiB to 622.6 MiB).",
  );
});

test("names are text, and malformed data leave the table", () => {
  const host = page();
  expect(host.querySelector("b")).toBe(null);
  expect(host.textContent).toContain("<b>optimizer</b>");

  const broken = page({ ...example(), variants: [] });
  expect(broken.querySelector("details")!.open).toBe(true);
  expect(broken.querySelector("input")).toBe(null);
});

test("the arrow keys reach the training's own length", () => {
  for (const length of [100, 128, 512, 1000, 1023]) expect(length % stepOf(length)).toBe(0);
});
