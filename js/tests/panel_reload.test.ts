// @vitest-environment jsdom
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { Notebooks } from "../src/hosts/panel/notebooks.ts";
import { loadMemory } from "../src/hosts/panel/remembered.ts";
import { StatusItem } from "../src/hosts/panel/status_item.ts";
import { level, SCHEMA, STATUS, span } from "./frames.ts";
import { openPanel, preparePanel } from "./opened_panel.ts";
import { FakeTracker } from "./signals.ts";

vi.mock("../src/core/plotly.ts", () => ({ draw: vi.fn(async () => {}), purge: vi.fn() }));

const STOPPED = { ...STATUS, state: "stopped" };
const OPEN = { ...span(1, null, "cell", 0, 1), stop: null, outcome: "" };
const GPUS = {
  ...SCHEMA,
  devices: ["cuda:0", "cuda:1"].map((key) => ({ key, name: "GPU", total: 1000 })),
  series: ["cuda:0", "cuda:1"].map((device) => ({ device, metric: "allocated" })),
};

beforeEach(preparePanel);

afterEach(() => {
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

function at(hour: number): number {
  const time = new Date(2026, 0, 1, hour).getTime();
  vi.setSystemTime(time);
  return time / 1000;
}

/** What the same tab shows of the notebook after a reload. */
async function reloaded(panel: Awaited<ReturnType<typeof openPanel>>["panel"]) {
  dispatchEvent(new Event("pagehide"));
  panel.dispose();
  panel.element.remove();
  at(15);
  const again = await openPanel();
  const item = new StatusItem(
    again.notebooks,
    () => {},
    () => {},
  );
  again.tracker.open("a");
  await again.settle();
  return { ...again, item };
}

describe("after a reload", () => {
  test("a run whose kernel had restarted is as dead as before", async () => {
    at(9);
    const before = await openPanel();
    const { sessionContext } = before.tracker.open("a");
    sessionContext.say("snapshot", 1, [level(0, 500)], { spans: [OPEN] });
    await before.settle();
    sessionContext.statusChanged.emit(sessionContext, "restarting");
    await before.settle();
    const told = before.find("condition")!.textContent;
    expect(told).toContain("kernel stopped (last update 09:00");
    const { find, panel, item } = await reloaded(before.panel);
    expect(find("condition")!.textContent).toBe(told);
    expect(panel.element.querySelector("tbody")!.textContent).not.toContain("running");
    expect(item.isActive).toBe(false);
  });

  test("the status bar says when the run ended", async () => {
    const { panel, tracker } = await openPanel();
    const schema = { ...SCHEMA, started_at: at(9) };
    tracker.open("a").sessionContext.say("snapshot", 1, [level(0, 500)], { schema, status: STOPPED });
    const { item } = await reloaded(panel);
    expect(item.element.title).toContain("As of 09:00");
  });

  test("only the kernels with the latest messages are remembered", () => {
    const tracker = new FakeTracker();
    new Notebooks(tracker, sessionStorage);
    const { sessionContext } = tracker.open("first");
    sessionContext.say("snapshot", 1, [level(0, 1)], { run: "first" });
    dispatchEvent(new Event("pagehide")); // the page lives on in the browser's cache
    for (let index = 0; index < 12; index++) {
      const notebook = tracker.open(`notebook ${index}`);
      notebook.sessionContext.say("snapshot", 1, [level(0, 1)], { run: `${index}` });
      notebook.disposed.emit(notebook, undefined);
    }
    dispatchEvent(new Event("pagehide"));
    const kept = [...loadMemory(sessionStorage).keys()];
    expect(kept).toHaveLength(8);
    expect(kept.at(-1)).toContain("first");
  });
});

describe("the device of the panel", () => {
  const WARNED = [{ kind: "oom", severity: "critical", title: "x", span: 1, device: "cuda:1" }];

  test("is, in the next run, not the one that a warning named", async () => {
    const { tracker, settle, tab } = await openPanel();
    const { sessionContext } = tracker.open("a");
    const cell = { spans: [span(1, null, "cell", 0, 1)], findings: WARNED, status: STOPPED };
    sessionContext.say("snapshot", 1, [[0, 500, 500]], { run: "a", schema: GPUS, ...cell });
    await settle();
    expect(tab().textContent).toContain("cuda:1");
    sessionContext.say("snapshot", 1, [[0, 500, 50]], { run: "b", schema: GPUS });
    await settle();
    expect(tab().textContent).toContain("cuda:0");
  });

  test("is that of its table, too, whether it was picked by mouse or by keyboard", async () => {
    const { tracker, settle, panel, tab } = await openPanel();
    const peaks = (peak: number) => ({ before: 0, after: 0, peak, certainty: "exact" });
    const devices = { "cuda:0": peaks(3 * 2 ** 30), "cuda:1": peaks(7 * 2 ** 30) };
    const spans = [{ ...span(1, null, "cell", 0, 1), devices }];
    const { sessionContext } = tracker.open("a");
    sessionContext.say("snapshot", 1, [[0, 500, 500]], { schema: GPUS, spans, status: STOPPED });
    await settle();
    const table = panel.element.querySelector("tbody")!;
    expect(table.textContent).toContain("3.00 GiB");
    tab().dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
    expect(table.textContent).toContain("7.00 GiB");
  });
});
