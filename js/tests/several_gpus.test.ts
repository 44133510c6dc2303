// @vitest-environment jsdom
import { beforeEach, describe, expect, test, vi } from "vitest";
import { defaultSettings } from "../src/core/settings.ts";
import { Store } from "../src/core/store.ts";
import { View } from "../src/core/view.ts";
import { message, SCHEMA, span } from "./frames.ts";
import { preparePage } from "./page.ts";

vi.mock("../src/core/plotly.ts", () => ({ draw: async () => {}, purge: () => {} }));

const DEVICES = ["cuda:0", "cuda:1"].map((key) => ({ key, name: "GPU", total: 1000 }));
const SERIES = DEVICES.map(({ key }) => ({ device: key, metric: "allocated" }));
const GPUS = { devices: DEVICES, series: SERIES };
const HOST = {
  devices: [{ key: "cpu", name: "CPU", total: 1000 }],
  series: [{ device: "cpu", metric: "allocated" }],
};
const BOTH = { devices: [...DEVICES, ...HOST.devices], series: [...HOST.series, ...SERIES] };
const CELL = span(1, null, "cell", 0, 1);

function started(row: [number, ...number[]], known: typeof GPUS = GPUS) {
  const store = new Store(Date.now);
  const { signal } = new AbortController();
  const settings = defaultSettings();
  const view = new View(document.body, store, { signal, clock: Date.now, settings });
  const schema = { ...SCHEMA, ...known };
  store.apply(message("snapshot", 0, [row], { schema, spans: [CELL] }));
  const tab = () => view.element.querySelector<HTMLElement>("[aria-selected=true]")!;
  return { store, tab, settings };
}

function warning(device: string) {
  return { kind: "oom", severity: "critical", title: `Out of memory on ${device}`, span: 1, device };
}

beforeEach(preparePage);

test("a GPU that appears later is shown instead of the host", () => {
  const { store, tab } = started([0, 5], HOST);
  expect(tab().textContent).toContain("cpu");
  store.apply(message("snapshot", 1, [[1, 5, 900, 0]], { schema: { ...SCHEMA, ...BOTH } }));
  expect(tab().textContent).toContain("cuda:0");
});

describe("of two GPUs", () => {
  test("the one is shown that the run uses, as soon as it does", () => {
    const { store, tab } = started([0, 0, 0]);
    expect(tab().textContent).toContain("cuda:0");
    store.apply(message("rows", 1, [[1, 0, 500]]));
    expect(tab().textContent).toContain("cuda:1");
  });

  test("the first stays where both are used, and after the memory was freed", () => {
    const { store, tab } = started([0, 100, 0]);
    store.apply(message("rows", 1, [[1, 100, 500]]));
    expect(tab().textContent).toContain("cuda:0");
    store.apply(message("rows", 2, [[2, 0, 0]]));
    expect(tab().textContent).toContain("cuda:0");
  });

  test("the one is shown that a warning names, and stays when that has gone", () => {
    const { store, tab } = started([0, 100, 500]);
    store.apply(message("rows", 1, [[1, 100, 900]], { findings: [warning("cuda:1")] }));
    expect(tab().textContent).toContain("cuda:1");
    store.apply(message("rows", 2, [[2, 100, 500]], { findings: [] }));
    expect(tab().textContent).toContain("cuda:1");
  });

  test("a warning about a device that is not there changes nothing", () => {
    const { store, tab } = started([0, 100, 500]);
    store.apply(message("rows", 1, [[1, 100, 500]], { findings: [warning("cuda:7")] }));
    expect(tab().textContent).toContain("cuda:0");
  });

  test("the chart that is paused stays as it is", () => {
    const { store, tab, settings } = started([0, 100, 500]);
    settings.paused = true;
    store.apply(message("rows", 1, [[1, 100, 900]], { findings: [warning("cuda:1")] }));
    expect(tab().textContent).toContain("cuda:0");
  });

  test("one that was picked in a run with other devices says nothing of these", () => {
    const { store, tab, settings } = started([0, 0, 0]);
    settings.picked = "rank:0";
    store.apply(message("rows", 1, [[1, 0, 500]]));
    expect(tab().textContent).toContain("cuda:1");
  });

  test("a person's choice stays, whatever is used or warned of", () => {
    const { store, tab } = started([0, 0, 0]);
    tab().click();
    store.apply(message("rows", 1, [[1, 0, 500]], { findings: [warning("cuda:1")] }));
    expect(tab().textContent).toContain("cuda:0");
  });
});

test("for memory shared with the CPU, the headline says so, and gives the free memory", () => {
  const [one] = DEVICES;
  const known = {
    devices: [{ ...one!, total: 8 * 2 ** 30, shared: true }],
    series: ["allocated", "device_used"].map((metric) => ({ device: "cuda:0", metric })),
  };
  started([0, 2 ** 30, 3 * 2 ** 30], known);
  const figures = document.querySelector(".hfmem-figures")!.textContent;
  expect(figures).toContain("of 8.00 GiB shared with the CPU");
  expect(figures).toContain("device used 3.00 GiB (5.00 GiB free)");
});
