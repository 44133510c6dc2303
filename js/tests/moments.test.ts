// @vitest-environment jsdom
import { beforeEach, expect, test } from "vitest";
import { drawAllMoments, type Held, heldAt, momentAt } from "../src/core/moments.ts";

const MIB = 2 ** 20;

/** As `features/stacks/html.py` packs it. */
async function packed(held: unknown): Promise<string> {
  const { readable, writable } = new CompressionStream("gzip");
  const writer = writable.getWriter();
  void writer.write(new TextEncoder().encode(JSON.stringify(held)));
  void writer.close();
  return btoa(String.fromCharCode(...new Uint8Array(await new Response(readable).arrayBuffer())));
}

function example(isTimed = true): Held {
  return {
    moments: [0, 1, 2, 4],
    isTimed,
    bands: [
      ["before the recording", "", "#cdbfa8", [MIB, MIB, MIB, 0]],
      ["cell [3] line 2", "x = <b>big</b>", "#0072B2", [0, 3 * MIB, 3 * MIB, 0]],
      ["cell [3] line 4", "", "#E69F00", [0, 0, 1000, 1000]],
    ],
  };
}

/** A picture of a hundred pixels a second, and the table below it. */
async function page(held: unknown): Promise<HTMLElement> {
  const paths = example().bands.map(([, , color]) => `<g><path fill="${color}"/></g>`);
  const rows = example().bands.map(
    ([name, , color]) =>
      `<tr><th><span style="color:${color}">\u25a0</span>${name}</th><td>what it held at the peak</td></tr>`,
  );
  document.body.innerHTML =
    `<div class="host"><div><svg><svg style="height:170px">${paths.join("")}</svg></svg></div></div>` +
    `<details><summary>by line</summary><table>${rows.join("")}</table></details>`;
  const host = document.querySelector<HTMLElement>(".host")!;
  host.dataset.hfmemMoments = typeof held === "string" ? held : await packed(held);
  await drawAllMoments(document);
  host.querySelector("svg")!.getBoundingClientRect = () => ({ left: 50, width: 400 }) as DOMRect;
  return host;
}

function click(host: HTMLElement, x: number, color = ""): void {
  const target = host.querySelector(color ? `path[fill="${color}"]` : "svg")!;
  target.dispatchEvent(new MouseEvent("click", { clientX: 50 + x, bubbles: true }));
}

const said = (host: HTMLElement) => host.querySelector("[role=status]")!.textContent;
const rows = (host: HTMLElement) =>
  [...host.querySelectorAll("tr")].map((row) => [...row.children].map((cell) => cell.textContent));
const marked = () => [...document.querySelectorAll("[data-marked] th")].map((cell) => cell.textContent);

beforeEach(() => document.body.replaceChildren());

test("allocated bytes stay until the next moment, the largest first", () => {
  const names = (at: number) => heldAt(example(), momentAt(example(), at)).map(([[name]]) => name);

  expect(names(0.9)).toEqual(["before the recording"]);
  expect(names(3.9)).toEqual(["cell [3] line 2", "before the recording", "cell [3] line 4"]);
  expect([momentAt(example(), -1), momentAt(example(), 9)]).toEqual([0, 3]);
});

test("a click on a moment shows its allocated bytes, with shares", async () => {
  const host = await page(example());
  expect(rows(host)).toEqual([]);

  click(host, 250);

  expect(said(host)).toBe("2.000 s after the start: 4.00 MiB allocated.");
  expect(rows(host)).toEqual([
    ["\u25a0\u00a0cell [3] line 2  x = <b>big</b>", "3.00 MiB", "75 %"],
    ["\u25a0\u00a0before the recording", "1.00 MiB", "25 %"],
    ["\u25a0\u00a0cell [3] line 4", "1,000 B", "<0.1 %"],
  ]);
  expect(host.querySelector("b")).toBe(null);
  expect(marked()).toEqual([]);
});

test("a click on a band marks its row here and in the table below, which opens", async () => {
  const host = await page(example());

  click(host, 150, "#0072B2");

  expect(said(host)).toBe(
    "1.000 s after the start: 4.00 MiB allocated, 3.00 MiB (75 %) of it from cell [3] line 2.",
  );
  expect(marked()).toEqual(["\u25a0\u00a0cell [3] line 2  x = <b>big</b>", "\u25a0cell [3] line 2"]);
  expect(document.querySelector("details")!.open).toBe(true);

  click(host, 150);
  expect(marked()).toEqual([]);
});

test("the slider goes from moment to moment, and keeps the mark", async () => {
  const host = await page(example());
  click(host, 150, "#0072B2");
  const slider = host.querySelector("input")!;
  slider.value = "3";
  slider.dispatchEvent(new Event("input"));

  expect(slider.getAttribute("aria-valuetext")).toBe("4.000 s");
  expect(said(host)).toBe("4.000 s after the start: 1,000 B allocated.");
  expect(marked()).toEqual(["\u25a0cell [3] line 2"]);
});

test("where events have no times, they are counted", async () => {
  const host = await page(example(false));
  click(host, 150);

  expect(said(host)).toBe("After 1 event: 4.00 MiB allocated.");
});

test.each(["", "nothing", { bands: [] }])("malformed data leave the picture: %s", async (held) => {
  const host = await page(held);

  expect(host.querySelector("input")).toBe(null);
  expect(host.querySelectorAll("path").length).toBe(3);
});
