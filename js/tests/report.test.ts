// @vitest-environment jsdom
import { beforeEach, expect, test, vi } from "vitest";
import { draw } from "../src/core/plotly.ts";
import { openReport, unpack } from "../src/hosts/report.ts";
import { type Frame, frame, level, SCHEMA } from "./frames.ts";
import { paint, preparePage } from "./page.ts";

vi.mock("../src/core/plotly.ts", () => ({ draw: vi.fn(async () => {}), purge: vi.fn() }));

const SNAPSHOT = frame("snapshot", 0, [level(0, 5), level(1, 7)], {
  status: { state: "stopped", elapsed: 1, interval: 0.1, missed: 0, cost: null, text: "" },
});

/** As `features/report/page.py` packs it. */
async function packed({ content, buffers }: Frame): Promise<string> {
  const parts = buffers.map((buffer) => new Uint8Array(buffer as ArrayBuffer));
  const head = JSON.stringify({ content, sizes: parts.map(({ length }) => length) });
  const { readable, writable } = new CompressionStream("gzip");
  const writer = writable.getWriter();
  for (const part of [new TextEncoder().encode(`${head}\n`), ...parts]) void writer.write(part);
  void writer.close();
  const bytes = new Uint8Array(await new Response(readable).arrayBuffer());
  return btoa(String.fromCharCode(...bytes));
}

function host(): HTMLElement {
  return document.body.appendChild(document.createElement("div"));
}

beforeEach(() => {
  preparePage();
  document.documentElement.className = "";
  vi.mocked(draw).mockClear();
});

test("the packed data are the frame of the wire", async () => {
  const { content, buffers } = await unpack(await packed(SNAPSHOT));

  expect(content).toEqual(SNAPSHOT.content);
  expect(buffers.map((each) => [...each])).toEqual(
    SNAPSHOT.buffers.map((each) => [...new Uint8Array(each as ArrayBuffer)]),
  );
});

test("the chart takes the place of the still one, and is not silent however old it is", async () => {
  vi.setSystemTime(new Date("2040-01-01"));
  const element = host();
  const running = frame("snapshot", 0, [level(0, 5), level(1, 7)]);

  await openReport(element, await packed(running), new AbortController().signal);
  paint();

  expect(document.documentElement.className).toBe("live");
  expect(element.querySelector(".hfmem-condition")?.textContent).toBe("running · 1.0 s");
  expect(draw).toHaveBeenCalled();
  vi.useRealTimers();
});

test("the device that the page names is shown first", async () => {
  const element = host();
  element.dataset.device = SCHEMA.devices[1]!.key;

  await openReport(element, await packed(SNAPSHOT), new AbortController().signal);

  expect(element.querySelector("[aria-selected=true], [aria-pressed=true]")?.textContent).toContain("cpu");
});

test.each(["", "nothing", "of a later version"])(
  "the still chart stays where the frame cannot be read: %s",
  async (text) => {
    const element = host();
    const later = await packed({ content: { kind: "snapshot", protocol: 99 }, buffers: [] });
    const carried = text === "of a later version" ? later : text;

    await openReport(element, carried, new AbortController().signal).catch(() => {});

    expect(document.documentElement.className).toBe("");
    expect(element.childElementCount).toBe(0);
  },
);
