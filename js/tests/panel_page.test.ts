// @vitest-environment jsdom
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { View } from "../src/core/view.ts";
import type { Application, Widget } from "../src/hosts/panel/jupyterlab.ts";
import { Note } from "../src/hosts/panel/note.ts";
import { Notebooks } from "../src/hosts/panel/notebooks.ts";
import { Opener } from "../src/hosts/panel/opener.ts";
import { definePlugin } from "../src/hosts/panel/plugin.ts";
import { StatusItem } from "../src/hosts/panel/status_item.ts";
import { resize, widthIn } from "../src/hosts/panel/width.ts";
import { SEEN } from "../src/hosts/seen.ts";
import { level, SCHEMA, STATUS, span } from "./frames.ts";
import { look, openPanel, preparePanel } from "./opened_panel.ts";
import { active } from "./page.ts";
import { FakeSignal, FakeTracker } from "./signals.ts";

vi.mock("../src/core/plotly.ts", () => ({ draw: vi.fn(async () => {}), purge: vi.fn() }));

const STOPPED = { ...STATUS, state: "stopped" };
beforeEach(preparePanel);

afterEach(() => {
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

describe("the panel", () => {
  test("tells how to begin where nothing was watched", async () => {
    const { tracker, find } = await openPanel();
    expect(find("panel-hint")!.textContent).toBe("Open a notebook to see its memory here.");
    tracker.open("a");
    expect(find("panel-hint")!.textContent).toContain("%%memwatch");
    expect(find("panel-content")!.hidden).toBe(true);
  });

  test("draws the notebook in front, and another when that comes to the front", async () => {
    const { tracker, settle, find, labels } = await openPanel();
    const [a, b] = [tracker.open("a"), tracker.open("b")];
    const spans = (label: string) => [{ ...span(1, null, "cell", 0, 1), label }];
    a.sessionContext.say("snapshot", 1, [level(0, 1)], { run: "a", spans: spans("in a") });
    b.sessionContext.say("snapshot", 1, [level(0, 1), level(1, 1)], { run: "b", spans: spans("in b") });
    await settle();
    expect(find("root")!.dataset.hfmemRows).toBe("2");
    expect(labels()).toEqual(["in b"]);
    tracker.show(a);
    await settle();
    expect(find("root")!.dataset.hfmemRows).toBe("1");
    expect(labels()).toEqual(["in a"]);
    expect(document.querySelectorAll(".hfmem-root")).toHaveLength(1);
  });

  test("fetches no chart before somebody looks at a run", async () => {
    const load = vi.fn(async () => ({ View }));
    const { tracker, settle } = await openPanel(load);
    look(false);
    tracker.open("a").sessionContext.say("snapshot", 1, [level(0, 1)]);
    await settle();
    expect(load).not.toHaveBeenCalled();
    look(true);
    await settle();
    expect(load).toHaveBeenCalledOnce();
  });

  test("says so where the chart cannot be fetched, and tries again when it is looked at anew", async () => {
    const load = vi.fn(async (): Promise<{ View: typeof View }> => {
      throw new Error("404");
    });
    const { tracker, settle, find } = await openPanel(load);
    tracker.open("a").sessionContext.say("snapshot", 1, [level(0, 1)]);
    await settle();
    expect(find("panel-chart")!.textContent).toContain("could not be loaded");
    load.mockImplementation(async () => ({ View }));
    look(true);
    await settle();
    expect(find("root")).not.toBeNull();
    expect(find("panel-chart")!.textContent).not.toContain("could not be loaded");
  });

  test("shows the path with the innermost first in the document, and text as text", async () => {
    const { tracker, settle, find, panel } = await openPanel();
    const path = ["<img src=x>", "train", "step 3 of 9"];
    const spans = [{ ...span(1, null, "cell", 0, 1), label: "<b>bold</b>", outcome: "raised <i>" }];
    const status = { ...STATUS, path };
    tracker.open("a").sessionContext.say("snapshot", 1, [level(0, 1)], { status, spans });
    await settle();
    expect(find("path")!.title).toBe("<img src=x> › train › step 3 of 9");
    expect([...find("path")!.children].map((node) => node.textContent)).toEqual([...path].reverse());
    expect(panel.element.querySelectorAll("img, b, i")).toHaveLength(0);
    expect(find("cell-outcome")!.textContent).toBe("<i>");
  });

  test("is in one state between the cells of a notebook, and says once in which", async () => {
    const { tracker, settle, find } = await openPanel();
    const over = { spans: [span(1, null, "cell", 0, 1)] };
    const { sessionContext } = tracker.open("a");
    sessionContext.say("snapshot", 1, [level(0, 1)], over);
    await settle();
    expect(find("condition")!.textContent).toBe("between cells");
    expect(find("path")!.textContent).toBe("");
    sessionContext.say("snapshot", 2, [level(1, 1)], { ...over, status: STOPPED });
    await settle();
    expect(find("path")!.textContent).toBe("nothing is being watched");
  });

  test("marks the worst peak, and a bound as a bound", async () => {
    const { tracker, settle, panel } = await openPanel();
    const bound = { before: 0, after: 2 ** 20, peak: 9 * 2 ** 20, certainty: "at least" };
    const spans = [
      { ...span(1, null, "cell", 0, 1), devices: { "cuda:0": bound } },
      span(2, null, "cell", 1, 2, 2 ** 20),
    ];
    tracker.open("a").sessionContext.say("snapshot", 1, [level(0, 1)], { spans, status: STOPPED });
    await settle();
    const cells = (row: Element) => [...row.children].map((node) => node.textContent);
    const rows = [...panel.element.querySelectorAll("tbody > tr")];
    expect(rows.map(cells).map((texts) => texts.slice(2))).toEqual([
      ["±0", "●1.00 MiB"],
      ["+1.00 MiB", "●≥ 9.00 MiB"],
    ]);
    const marks = rows.map((row) => row.querySelector<HTMLElement>(".hfmem-cell-mark")!.hidden);
    expect(marks).toEqual([true, false]);
  });

  test("shows the most severe finding below its cell, and the rest in the tooltip", async () => {
    const { tracker, settle, panel } = await openPanel();
    const spans = [span(1, null, "cell", 0, 1), span(2, null, "cell", 1, 2)];
    const findings = [
      { kind: "leak", severity: "info", title: "grows <b>a little</b>", span: 1 },
      { kind: "budget", severity: "warn", title: "over 20 GiB", span: 1 },
    ];
    const { sessionContext } = tracker.open("a");
    sessionContext.say("snapshot", 1, [level(0, 1)], { spans, findings, status: STOPPED });
    await settle();
    const rows = () => [...panel.element.querySelectorAll("tbody > tr")].map((row) => row.className);
    expect(rows()).toEqual(["", "", "hfmem-cell-found"]);
    const found = panel.element.querySelector<HTMLElement>(".hfmem-cell-found .hfmem-notice")!;
    expect(found.textContent).toBe("▲warning: over 20 GiB");
    expect(found.title).toBe("over 20 GiB\ngrows <b>a little</b>");
    expect(panel.element.querySelectorAll("b")).toHaveLength(0);
    sessionContext.say("snapshot", 2, [level(0, 1)], { spans, status: STOPPED });
    await settle();
    expect(rows()).toEqual(["", ""]);
  });

  test("keeps the device that a person picked when the next run begins", async () => {
    const { tracker, settle, panel } = await openPanel();
    const { sessionContext } = tracker.open("a");
    const selected = () => panel.element.querySelector('[aria-selected="true"]')!.textContent;
    sessionContext.say("snapshot", 1, [level(0, 1)], { run: "a", status: STOPPED });
    await settle();
    panel.element.querySelectorAll<HTMLElement>('[role="tab"]')[1]!.click();
    sessionContext.say("snapshot", 1, [level(0, 1)], { run: "b" });
    await settle();
    expect(selected()).toBe("cpu");
  });

  test("tells the page which run a person looks at when news comes slowly", async () => {
    const { tracker, settle, find } = await openPanel();
    const told: unknown[] = [];
    addEventListener(SEEN, (event) => told.push((event as CustomEvent).detail), { once: true });
    tracker.open("a").sessionContext.say("snapshot", 1, [level(0, 1)], { run: "slow" });
    await settle();
    vi.advanceTimersByTime(5000);
    find("root")!.dispatchEvent(new Event("pointerenter"));
    expect(told).toEqual(["slow"]);
  });

  test("leaves nothing behind when it goes", async () => {
    const { tracker, panel, settle } = await openPanel();
    const notebook = tracker.open("a");
    notebook.sessionContext.say("snapshot", 1, [level(0, 1)]);
    await settle();
    panel.dispose();
    expect(vi.getTimerCount()).toBe(0);
    notebook.disposed.emit(notebook, undefined);
    expect(notebook.sessionContext.listeners).toBe(0);
    expect(active.size).toBe(0);
    expect(document.querySelectorAll(".hfmem-root")).toHaveLength(0);
  });
});

describe("the page's notebooks", () => {
  test("start empty with another kernel, and find the data of an earlier page", () => {
    const tracker = new FakeTracker();
    const notebooks = new Notebooks(tracker, sessionStorage);
    const { sessionContext } = tracker.open("a");
    sessionContext.say("snapshot", 1, [level(0, 1)]);
    sessionContext.changeKernel("another");
    expect(notebooks.front!.runs.isEmpty).toBe(true);
    sessionContext.say("snapshot", 1, [level(0, 1)], { run: "kept" });
    dispatchEvent(new Event("pagehide"));

    const reloaded = new FakeTracker();
    const again = new Notebooks(reloaded, sessionStorage);
    reloaded.open("a").sessionContext.changeKernel("another");
    expect(again.front!.runs.current!.run).toBe("kept");
  });

  test("notice when their kernel restarts", () => {
    const tracker = new FakeTracker();
    const notebooks = new Notebooks(tracker, sessionStorage);
    const { sessionContext } = tracker.open("a");
    sessionContext.say("snapshot", 1, [level(0, 1)]);
    sessionContext.statusChanged.emit(sessionContext, "busy");
    expect(notebooks.front!.runs.isLost).toBe(false);
    sessionContext.statusChanged.emit(sessionContext, "restarting");
    expect(notebooks.front!.runs.isLost).toBe(true);
  });
});

describe("the kernel's subshell for widgets", () => {
  const input = (code: unknown) => ({ header: { msg_type: "execute_input" }, content: { code } });
  const open = (change: object = {}) => {
    const tracker = new FakeTracker();
    new Notebooks(tracker, sessionStorage);
    const { sessionContext } = tracker.open("a");
    Object.assign(sessionContext.session!.kernel!, change);
    const run = (code: unknown) => sessionContext.iopubMessage.emit(sessionContext, input(code));
    return { sessionContext, run };
  };

  test("is kept from when a cell names this package, once for each life of a kernel", () => {
    const { sessionContext, run } = open();
    run("import torch");
    run(7);
    expect(sessionContext.comms).toEqual([]);
    run("%load_ext hfmem_widget");
    run("import hfmem_widget");
    expect(sessionContext.comms).toEqual([{ target: "jupyter.widget", isDisposed: false }]);
    sessionContext.comms[0]!.isDisposed = true;
    run("%load_ext hfmem_widget");
    sessionContext.changeKernel("another");
    run("%load_ext hfmem_widget");
    expect(sessionContext.comms).toHaveLength(3);
  });

  test.each([
    { supportsSubshells: false },
    { commsOverSubshells: "disabled" },
    { commsOverSubshells: undefined },
  ])("is none of ours where a page has it otherwise: %j", (change) => {
    const { sessionContext, run } = open(change);
    run("%load_ext hfmem_widget");
    expect(sessionContext.comms).toEqual([]);
  });
});

describe("opening by itself", () => {
  test("happens once for each notebook, when it is in front, and only where it is wanted", () => {
    const tracker = new FakeTracker();
    const notebooks = new Notebooks(tracker, sessionStorage);
    const show = vi.fn();
    let wanted = true;
    new Opener(notebooks, show, () => wanted);
    const [a, b, c] = [tracker.open("a"), tracker.open("b"), tracker.open("c")];
    b.sessionContext.say("snapshot", 1, [], { run: "b" });
    expect(show).toHaveBeenCalledTimes(0);
    tracker.show(b);
    expect(show).toHaveBeenCalledTimes(1);
    b.sessionContext.say("snapshot", 1, [], { run: "b2" });
    tracker.show(a);
    a.sessionContext.say("snapshot", 1, [], { schema: { ...SCHEMA, panel: false } });
    expect(show).toHaveBeenCalledTimes(1);
    wanted = false;
    tracker.show(c);
    c.sessionContext.say("snapshot", 1, []);
    expect(show).toHaveBeenCalledTimes(1);
  });
});

describe("the status bar's item", () => {
  test("is there while something is known, and tells when that is of the past", () => {
    const tracker = new FakeTracker();
    const notebooks = new Notebooks(tracker, sessionStorage);
    const onActive = vi.fn();
    const item = new StatusItem(notebooks, () => {}, onActive);
    const { sessionContext } = tracker.open("a");
    vi.advanceTimersByTime(600);
    expect(item.isActive).toBe(false);
    sessionContext.say("snapshot", 1, [level(0, 960)]);
    vi.advanceTimersByTime(600);
    expect(item.isActive).toBe(true);
    expect(item.element.dataset.hfmemLevel).toBe("critical");
    expect(item.element.textContent).toContain("almost full");
    expect(item.element.title).not.toContain("As of");
    const label = "fine-tune, with a long label";
    const cell = { ...span(1, null, "cell", 0, 1, 345 * 2 ** 20), stop: null, label };
    sessionContext.say("snapshot", 2, [level(1, 100)], { spans: [cell] });
    vi.advanceTimersByTime(600);
    expect(item.element.textContent).toMatch(/ · fine-tune, with a long …, peak 345.0 MiB$/);
    sessionContext.say("snapshot", 3, [level(2, 10)], { status: STOPPED, spans: [{ ...cell, stop: 2 }] });
    vi.advanceTimersByTime(600);
    expect(item.element.title).toContain("As of");
    expect(item.element.textContent).not.toContain("fine-tune");
    sessionContext.statusChanged.emit(sessionContext, "dead");
    vi.advanceTimersByTime(600);
    expect(item.isActive).toBe(false);
    expect(onActive).toHaveBeenCalledTimes(2);
  });
});

describe("the plugin", () => {
  const lumino = {
    Widget: class {
      id = "";
      node: HTMLElement;
      parent = null;
      title = { caption: "", icon: null };
      disposed = { connect: () => true, disconnect: () => true };
      hidden = false;
      constructor({ node }: { node: HTMLElement }) {
        this.node = node;
      }
      setHidden(hidden: boolean): void {
        this.hidden = hidden;
      }
    },
  };
  const registryOf = (composite: Record<string, unknown>) => {
    const changed = new FakeSignal<unknown, unknown>();
    const set = vi.fn(async (_: string, key: string, value: unknown) => {
      composite[key] = value;
      changed.emit(null, undefined);
    });
    return { load: async () => ({ composite, changed }), set };
  };
  const scopeOf = (modules: Record<string, object>) =>
    Object.fromEntries(
      Object.entries(modules).map(([name, exports]) => [
        name,
        { "4.4.0": { get: async () => () => exports } },
      ]),
    );
  function application() {
    const added: Widget[] = [];
    const commands = new Map<string, { execute(): void; isEnabled?(): boolean }>();
    const activated: string[] = [];
    const app: Application = {
      shell: { add: (widget) => void added.push(widget), activateById: (id) => void activated.push(id) },
      commands: {
        addCommand: (id, command) => commands.set(id, command),
        notifyCommandChanged: () => {},
      },
      restored: Promise.resolve(),
    };
    return { app, added, commands, activated };
  }

  test("does nothing on a page without notebooks, and breaks nothing without any module", async () => {
    const { app, added, commands } = application();
    const plugin = await definePlugin({});
    plugin.activate(app, ...plugin.optional.map(() => null));
    expect(added).toEqual([]);
    expect(commands.size).toBe(0);
  });

  test("works with notebooks alone, without status bar, palette, settings and restorer", async () => {
    const { app, added, commands, activated } = application();
    const INotebookTracker = { name: "tracker" };
    const plugin = await definePlugin(
      scopeOf({
        "@jupyterlab/notebook": { INotebookTracker },
        "@jupyterlab/ui-components": { LabIcon: class {} },
        "@lumino/widgets": lumino,
      }),
    );
    expect(plugin.requires).toEqual([]);
    expect(plugin.optional[0]).toBe(INotebookTracker);
    const tracker = new FakeTracker();
    vi.spyOn(HTMLElement.prototype, "offsetWidth", "get").mockReturnValue(1600);
    plugin.activate(app, tracker, null, null, null, null);
    expect(added.map(({ id }) => id)).toEqual(["hfmem-panel"]);
    await vi.waitFor(() => {
      tracker.open("a").sessionContext.say("snapshot", 1, [level(0, 1)]);
      expect(activated).toContain("hfmem-panel");
    });
    expect(commands.get("hfmem-widget:clear")!.isEnabled!()).toBe(true);
  });

  test.each([
    [879, null, false],
    [880, null, true],
    [880, true, true],
    [1600, false, false],
  ])(
    "opens by itself beside a notebook of %d pixels, with the setting %j: %j",
    async (width, wanted, opens) => {
      const { app, activated, added } = application();
      const plugin = await definePlugin(
        scopeOf({
          "@jupyterlab/notebook": { INotebookTracker: {} },
          "@jupyterlab/ui-components": { LabIcon: class {} },
          "@lumino/widgets": lumino,
        }),
      );
      const registry = registryOf({ openWithWatch: wanted ?? undefined });
      vi.spyOn(HTMLElement.prototype, "offsetWidth", "get").mockReturnValue(width);
      const tracker = new FakeTracker();
      plugin.activate(app, tracker, null, null, registry, null);
      tracker.open("a").sessionContext.say("snapshot", 1, [level(0, 1)]);
      for (let turn = 0; turn < 10; turn++) await Promise.resolve();
      expect(activated).toEqual(opens ? ["hfmem-panel"] : []);
      expect(added[0]!.node.querySelector<HTMLElement>(".hfmem-panel-note")!.hidden).toBe(!opens);
    },
  );

  async function activate(composite: Record<string, unknown>) {
    const { app, added } = application();
    const plugin = await definePlugin(
      scopeOf({
        "@jupyterlab/notebook": { INotebookTracker: {} },
        "@jupyterlab/ui-components": { LabIcon: class {} },
        "@lumino/widgets": lumino,
      }),
    );
    const tracker = new FakeTracker();
    const notebook = tracker.open("a");
    const registry = registryOf(composite);
    plugin.activate(app, tracker, null, null, registry, null);
    document.body.append(added[0]!.node);
    look(true);
    for (let turn = 0; turn < 10; turn++) await Promise.resolve();
    return { registry, notebook, tracker, first: document.querySelector<HTMLElement>(".hfmem-panel-first")! };
  }

  test("shows the toolbar's button until a first watch is seen, and never again", async () => {
    const { registry, notebook, tracker, first } = await activate({ showHint: true });
    expect(first.hidden).toBe(false);
    expect(first.querySelector("svg")).not.toBeNull();
    notebook.sessionContext.say("snapshot", 1, [level(0, 1)]);
    tracker.open("b");
    expect(first.hidden).toBe(true);
    expect(registry.set.mock.calls).toEqual([["hfmem-widget:plugin", "showHint", false]]);
  });

  test("shows it no more once a person has read it", async () => {
    const { registry, notebook, first } = await activate({ showHint: true });
    first.querySelector("button")!.click();
    expect(first.hidden).toBe(true);
    notebook.sessionContext.say("snapshot", 1, [level(0, 1)]);
    expect(registry.set).toHaveBeenCalledOnce();
    const again = await activate({ showHint: false });
    expect(again.first.hidden).toBe(true);
    again.notebook.sessionContext.say("snapshot", 1, [level(0, 1)]);
    expect(again.registry.set).not.toHaveBeenCalled();
  });

  test("tells the page an interval that a person has set, and says nothing of the usual one", async () => {
    const { wantedInterval } = await import("../src/hosts/interval.ts");
    const usual = await activate({ interval: 0.1 });
    expect(wantedInterval()).toBeUndefined();
    await usual.registry.set("", "interval", 2);
    expect(wantedInterval()).toBe(2);
    await usual.registry.set("", "interval", 0.1);
    expect(wantedInterval()).toBe(0.1);
  });

  test("takes of a shared module the version that is loaded, else the newest", async () => {
    const token = (name: string) => ({ get: () => () => ({ INotebookTracker: name }) });
    const versions = { "4.9.0": token("nine"), "4.10.0": token("ten") };
    const optional = async (scope: Parameters<typeof definePlugin>[0]) =>
      (await definePlugin(scope)).optional[0];
    expect(await optional({ "@jupyterlab/notebook": versions })).toBe("ten");
    const loaded = { ...versions, "4.9.0": { ...versions["4.9.0"], loaded: 1 } };
    expect(await optional({ "@jupyterlab/notebook": loaded })).toBe("nine");
  });
});

describe("the panel's width", () => {
  test.each([
    // What a window of JupyterLab has for notebook and panel, with its left side bar open or folded away.
    ["900, open", 572, null],
    ["900, folded", 824, null],
    ["1280, open", 952, 392],
    ["1280, folded", 1204, 400],
    ["1400, open", 1072, 400],
    ["1920, open", 1592, 400],
    ["just enough", 880, 320],
    ["a pixel short", 879, null],
    ["a notebook behind another tab", 0, null],
  ])("in a window of %s is one that leaves the notebook its own", (_, room, width) => {
    expect(widthIn(room)).toBe(width);
  });

  const split = (width: number, sizes: number[]) => ({
    node: { clientWidth: width },
    parent: null,
    sizes,
    widgets: [] as object[],
    relativeSizes: () => [...sizes],
    setRelativeSizes(next: number[]) {
      this.sizes = next;
    },
  });
  /** A panel whose side bar is at the end, or at some place before that. */
  const panelIn = (around: ReturnType<typeof split>, place = around.sizes.length - 1) => {
    const bar = { parent: around };
    around.widgets = around.sizes.map((_, at) => (at === place ? bar : {}));
    return { parent: bar } as unknown as Widget;
  };

  test("is exchanged with the widest of its neighbours, either way", () => {
    const around = split(2000, [0.1, 0.75, 0.15]);
    resize(panelIn(around), 500);
    expect(around.sizes.map((size) => Math.round(1000 * size))).toEqual([100, 650, 250]);
    const wide = split(2000, [0.5, 0.5]);
    resize(panelIn(wide), 400);
    expect(wide.sizes.map((size) => Math.round(1000 * size))).toEqual([800, 200]);
  });

  test("is that of the side bar at the left where it was put there", () => {
    const around = split(2000, [0.1, 0.75, 0.15]);
    resize(panelIn(around, 0), 400);
    expect(around.sizes.map((size) => Math.round(1000 * size))).toEqual([200, 650, 150]);
  });

  test("stays as it is without a split panel, or without enough room in a neighbour", () => {
    expect(() => resize({ parent: null } as unknown as Widget, 500)).not.toThrow();
    const small = split(300, [0.5, 0.5]);
    resize(panelIn(small), 400);
    expect(small.sizes).toEqual([0.5, 0.5]);
  });
});

describe("how to have it stay closed", () => {
  const buttons = (note: Note) => [...note.element.querySelectorAll("button")];

  test("is shown once in a browser", () => {
    const [first, second] = [new Note(localStorage), new Note(localStorage)];
    expect(first.element.hidden).toBe(true);
    first.show(() => {});
    second.show(() => {});
    expect(first.element.textContent).toContain("--no-panel");
    expect([first, second].map(({ element }) => element.hidden)).toEqual([false, true]);
  });

  test("is one click where the page keeps settings, and can be sent away", () => {
    const note = new Note(localStorage);
    const turnOff = vi.fn();
    document.body.append(note.element);
    note.show(turnOff);
    const [off, dismiss] = buttons(note);
    off!.click();
    expect(turnOff).toHaveBeenCalledOnce();
    expect(buttons(note)).toEqual([dismiss]);
    dismiss!.click();
    expect(note.element.isConnected).toBe(false);
  });

  test("is words alone where it keeps none, or nothing at all", () => {
    const full = {
      getItem: () => null,
      setItem: () => {
        throw new DOMException("full");
      },
    };
    const note = new Note(full as unknown as Storage);
    note.show(null);
    expect(note.element.hidden).toBe(false);
    expect(buttons(note)).toHaveLength(1);
  });
});
