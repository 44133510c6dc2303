// @vitest-environment jsdom
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { defaultSettings, type Settings } from "../src/core/settings.ts";
import { Store } from "../src/core/store.ts";
import { View } from "../src/core/view.ts";
import { level, message, PARTS_SCHEMA, partRow, SCHEMA, STATUS, span, stepRow, tableOf } from "./frames.ts";
import { active, paint, preparePage } from "./page.ts";

const plotly = vi.hoisted(() => ({ draw: vi.fn(async () => {}), purge: vi.fn() }));
vi.mock("../src/core/plotly.ts", () => plotly);

const HOSTILE = "<img src=x onerror=alert(1)>";

function open(store: Store, chosen: Partial<Settings> = {}) {
  const life = new AbortController();
  const settings = { ...defaultSettings(), ...chosen };
  const view = new View(document.body, store, { signal: life.signal, clock: () => Date.now(), settings });
  return { view, life, settings, element: view.element };
}

function snapshot(more: object = {}, rows = [level(0, 100), level(1, 200)]) {
  return message("snapshot", 0, rows, more);
}

/** Open a view of a run that has sent its first snapshot, and draw it. */
function shown(first = snapshot(), chosen: Partial<Settings> = {}) {
  const store = new Store(Date.now);
  const opened = open(store, chosen);
  store.apply(first);
  paint();
  return { store, ...opened };
}

function button(element: HTMLElement, title: string): HTMLButtonElement {
  return element.querySelector<HTMLButtonElement>(`button[title^="${title}"]`)!;
}

beforeEach(() => {
  vi.useFakeTimers({
    toFake: ["setTimeout", "setInterval", "clearTimeout", "clearInterval", "Date", "performance"],
  });
  preparePage();
  plotly.draw.mockClear();
  plotly.purge.mockClear();
});

afterEach(() => {
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

describe("View", () => {
  test("before the first snapshot it waits, at full height", () => {
    const { element } = open(new Store(Date.now));
    paint();
    const placeholder = element.querySelector<HTMLElement>(".hfmem-placeholder")!;
    expect(placeholder.hidden).toBe(false);
    expect(placeholder.textContent).toBe("waiting for the first sample");
    expect(plotly.draw).not.toHaveBeenCalled();
  });

  test("the first snapshot shows at once", () => {
    const store = new Store(Date.now);
    const { element } = open(store);
    paint();
    store.apply(snapshot());
    paint();
    expect(plotly.draw).toHaveBeenCalledTimes(1);
    expect(element.querySelector(".hfmem-now")!.textContent).toBe("0.00");
    expect(element.querySelector<HTMLElement>(".hfmem-placeholder")!.hidden).toBe(true);
    expect(element.dataset).toMatchObject({ hfmemDraws: "1", hfmemRows: "2", hfmemSeq: "0" });
  });

  test("a flood of messages is drawn two or three times a second", () => {
    const store = new Store(Date.now);
    open(store);
    store.apply(snapshot());
    paint();
    plotly.draw.mockClear();
    for (let seq = 1; seq <= 200; seq++) {
      store.apply(message("rows", seq, [level(1 + seq, 1)]));
      vi.advanceTimersByTime(10);
      paint();
    }
    expect(plotly.draw.mock.calls.length).toBeGreaterThanOrEqual(4);
    expect(plotly.draw.mock.calls.length).toBeLessThanOrEqual(6);
  });

  test("a paused chart holds still while data arrive, and goes on with all of them", () => {
    const { store, element } = shown();
    button(element, "pause").click();
    paint();
    plotly.draw.mockClear();
    store.apply(message("rows", 1, [level(5, 1)]));
    vi.advanceTimersByTime(2000);
    paint();
    expect(plotly.draw).not.toHaveBeenCalled();
    expect(store.timeline.length).toBe(3);
    button(element, "resume").click();
    paint();
    expect(plotly.draw).toHaveBeenCalledTimes(1);
  });

  test("the arrow keys move through the device tabs and around the end", () => {
    const { element } = shown();
    const tabs = [...element.querySelectorAll<HTMLElement>("[role=tab]")];
    expect(tabs.map((tab) => tab.textContent)).toEqual(["cuda:0", "cpu"]);
    const press = (tab: HTMLElement, key: string) =>
      tab.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    press(tabs[0]!, "ArrowRight");
    expect(tabs.map((tab) => tab.getAttribute("aria-selected"))).toEqual(["false", "true"]);
    expect(document.activeElement).toBe(tabs[1]);
    press(tabs[1]!, "ArrowRight");
    expect(tabs.map((tab) => tab.tabIndex)).toEqual([0, -1]);
  });

  test("percent of capacity needs a capacity", () => {
    const { element } = shown();
    const units = element.querySelector<HTMLElement>(".hfmem-units")!;
    button(element, "show percent").click();
    expect(element.querySelector(".hfmem-current")!.textContent).toBe("20.0 %");
    element.querySelectorAll<HTMLElement>("[role=tab]")[1]!.click();
    expect(units.hidden).toBe(true);
    expect(element.querySelector(".hfmem-current")!.textContent).toBe("0.00 MiB");
  });

  test.each([
    [9, true],
    [10, false],
  ])("percent is offered from one percent on, of 1000: with %d it is hidden: %j", (allocated, hidden) => {
    const { element } = shown(snapshot({}, [level(0, allocated)]));
    expect(element.querySelector<HTMLElement>(".hfmem-units")!.hidden).toBe(hidden);
  });

  test("a button shows which unit is shown", () => {
    const { element } = shown();
    const pressed = () =>
      [...element.querySelectorAll(".hfmem-unit")].map((node) => node.getAttribute("aria-pressed"));
    expect(pressed()).toEqual(["true", "false"]);
    button(element, "show percent").click();
    expect(pressed()).toEqual(["false", "true"]);
  });

  test.each([
    [30, []],
    [31, ["all", "30 s"]],
    [301, ["all", "30 s", "60 s", "5 min"]],
  ])("after %d s there are the windows %j", (elapsed, windows) => {
    const { element } = shown(snapshot({ status: { ...STATUS, elapsed } }));
    const offered = element.querySelectorAll<HTMLElement>(".hfmem-group > :not([hidden])");
    expect([...offered].map((node) => node.textContent)).toEqual(windows);
  });

  test("a zoomed chart says so, and a click restores the former view", () => {
    const { element, settings } = shown(snapshot({ status: { ...STATUS, elapsed: 40 } }), {
      window: 30,
      zoom: [0.2, 0.4],
    });
    const reset = element.querySelector<HTMLButtonElement>(".hfmem-unzoom")!;
    expect(reset.hidden).toBe(false);
    reset.click();
    expect(settings).toMatchObject({ window: 30, zoom: null });
    expect(reset.hidden).toBe(true);
  });

  test("a switched-off series is not drawn and stays in the legend", () => {
    const { element } = shown();
    const item = button(element, "hide reserved");
    item.click();
    paint();
    vi.advanceTimersByTime(600);
    expect(item.hidden).toBe(false);
    expect(item.getAttribute("aria-pressed")).toBe("false");
    const [, figure] = plotly.draw.mock.lastCall as unknown as [unknown, { data: { uid: string }[] }];
    expect(figure.data.map(({ uid }) => uid)).not.toContain("reserved");
  });

  test("on the host one click shows the hidden series, and leaves the GPUs as they are", () => {
    const { element } = shown();
    element.querySelectorAll<HTMLElement>("[role=tab]")[1]!.click();
    paint();
    const item = button(element, "show reserved");
    expect([item.hidden, item.getAttribute("aria-pressed")]).toEqual([false, "false"]);
    item.click();
    paint();
    const [, figure] = plotly.draw.mock.lastCall as unknown as [unknown, { data: { uid: string }[] }];
    expect(figure.data.map(({ uid }) => uid)).toContain("reserved");
    expect(button(element, "hide reserved").getAttribute("aria-pressed")).toBe("true");
    element.querySelectorAll<HTMLElement>("[role=tab]")[0]!.click();
    expect(button(element, "hide reserved")).toBe(item);
  });

  describe("with parts", () => {
    const choice = (element: HTMLElement) =>
      element.querySelector<HTMLInputElement>(".hfmem-legend-parts input")!;
    const drawn = () => {
      const [, figure] = plotly.draw.mock.lastCall as unknown as [unknown, { data: { uid: string }[] }];
      return figure.data.map(({ uid }) => uid).filter((uid) => uid.endsWith("-area"));
    };
    const opened = () => {
      const store = new Store(Date.now);
      const { element } = open(store);
      const more = { schema: PARTS_SCHEMA, spans: [span(1, null, "cell", 0, 1, 60)] };
      store.apply(snapshot(more, [partRow(0, 50), partRow(1, 60)]));
      paint();
      vi.advanceTimersByTime(600);
      return { store, element };
    };

    test("the legend names them, and one switch brings the plain area back", () => {
      const { element } = opened();
      const names = () =>
        [...element.querySelectorAll<HTMLElement>(".hfmem-legend-part")]
          .filter((node) => !node.hidden)
          .map((node) => node.textContent);
      const all = ["weights", "buffers", "optimizer", "gradients", "not attributed", "activations"];
      expect(names()).toEqual(all);
      expect(choice(element).getAttribute("aria-label")).toContain("optimizer states");
      choice(element).click();
      paint();
      expect(drawn()).toEqual(["allocated-area"]);
      expect(names()).toEqual([]);
      expect(choice(element).checked).toBe(false);
      choice(element).click();
      paint();
      expect(drawn()).toHaveLength(6);
    });

    test("no switch is offered where there are none", () => {
      const { store, element } = opened();
      store.apply(message("snapshot", 0, [level(0, 100)], { run: "b" }));
      paint();
      vi.advanceTimersByTime(600);
      expect(element.querySelector<HTMLElement>(".hfmem-legend-parts")!.hidden).toBe(true);
    });

    test("the bar of capacity names each with its bytes, the context, the cache and free memory", () => {
      const { element } = opened();
      const bar = element.querySelector<HTMLElement>(".hfmem-capacity")!;
      const told = bar
        .getAttribute("aria-label")!
        .replaceAll(/ [\d.]+ MiB/g, "")
        .split(" · ");
      expect(told).toEqual([
        ...["CUDA context", "weights", "buffers", "optimizer states", "gradients", "not attributed"],
        ...["activations and temporaries", "cache", "other use", "free", "of"],
      ]);
      expect(bar.title).toBe(bar.getAttribute("aria-label"));
      const widths = [...bar.children].map((piece) => Number.parseFloat((piece as HTMLElement).style.width));
      expect(widths.filter((width) => width > 0)).toEqual([0.5, 1, 0.1, 2, 1, 0.2, 1.7, 2, 0.5]);
    });

    test("without them the bar has allocated memory as one piece", () => {
      const { element } = shown();
      const label = element.querySelector(".hfmem-capacity")!.getAttribute("aria-label")!;
      expect(label).toMatch(/^allocated .* · free .* · of /);
    });

    test("the table for screen readers has the parts of allocated memory", () => {
      const { element } = opened();
      const [first, second] = [...element.querySelectorAll(".hfmem-hidden > table tr")].slice(1);
      expect(first!.children[2]!.textContent).toMatch(
        /^weights .*, buffers .*, optimizer states .*, gradients .*, not attributed .*, activations and temporaries /,
      );
      expect(second!.children[2]!.textContent).toBe("n/a");
    });
  });

  test("a failed run says why", () => {
    const { element } = shown(snapshot({ status: { ...STATUS, state: "failed", text: "NVML went away" } }));
    expect(element.dataset.hfmemCondition).toBe("failed");
    expect(element.querySelector(".hfmem-condition")!.textContent).toBe("NVML went away");
  });

  test.each(["throws", "rejects"])(
    "a drawing that %s is told beside the chart, until one succeeds",
    async (how) => {
      const store = new Store(Date.now);
      const { element } = open(store);
      plotly.draw.mockImplementationOnce(() => {
        if (how === "throws") throw new Error("no room");
        return Promise.reject(new Error("no room"));
      });
      store.apply(snapshot());
      paint();
      await Promise.resolve();
      const condition = element.querySelector(".hfmem-condition")!;
      expect(condition.textContent).toBe("the chart cannot be drawn (Error: no room)");
      store.apply(message("rows", 1, [level(5, 1)]));
      vi.advanceTimersByTime(500);
      paint();
      vi.advanceTimersByTime(500);
      expect(condition.textContent).toMatch(/^running/);
    },
  );

  test("a drag holds the drawing still, a right click does not", () => {
    const { store, element } = shown();
    const plot = element.querySelector(".hfmem-plot")!;
    for (const [button, draws] of [
      [2, 1],
      [0, 0],
    ]) {
      plot.dispatchEvent(new MouseEvent("pointerdown", { button: button!, bubbles: true }));
      plotly.draw.mockClear();
      store.apply(message("rows", store.seq + 1, [level(5 + store.seq, 1)]));
      vi.advanceTimersByTime(500);
      paint();
      expect(plotly.draw).toHaveBeenCalledTimes(draws!);
    }
    globalThis.dispatchEvent(new MouseEvent("pointerup"));
    vi.advanceTimersByTime(500);
    paint();
    expect(plotly.draw).toHaveBeenCalledTimes(1);
  });

  describe("with steps", () => {
    const rows = [1, 2, 3, 4].map((number) => stepRow({ number, tokens: 100 * number, peak: 10 * number }));

    function withSteps(): { store: Store; element: HTMLElement } {
      const { store, element } = shown();
      store.steps = tableOf(rows);
      vi.advanceTimersByTime(600);
      return { store, element };
    }

    test("before the first step there are no texts on steps, and their places are kept", () => {
      const { element } = shown();
      vi.advanceTimersByTime(600);
      expect(element.querySelector(".hfmem-progress")!.textContent).toBe("");
      const lens = element.querySelector<HTMLElement>(".hfmem-lens")!;
      expect([lens.style.visibility, lens.hidden]).toEqual(["hidden", false]);
    });

    test("the progress of the training is beside the legend", () => {
      const { element } = withSteps();
      expect(element.querySelector(".hfmem-progress")!.textContent).toBe("step 4");
    });

    test("a note on partly measured steps is beside it", () => {
      const { store, element } = withSteps();
      const limited = "phases on 10 of 90 steps, to stay below 1 %";
      store.apply(message("rows", 1, [level(2, 1)], { status: { ...STATUS, limited } }));
      vi.advanceTimersByTime(600);
      expect(element.querySelector(".hfmem-progress")!.textContent).toContain(limited);
    });

    test("by tokens draws points, with a legend of their own, and over time goes back", () => {
      const { element } = withSteps();
      const figureOf = () => JSON.stringify(plotly.draw.mock.calls.at(-1));
      const legend = () =>
        [...element.querySelectorAll<HTMLElement>(".hfmem-legend-item:not([hidden])")].map(
          (item) => item.textContent,
        );
      button(element, "draw the peak of each step").click();
      paint();
      expect(figureOf()).toContain('"markers"');
      expect(legend()).toEqual(["peak of a step", "memory after the step"]);
      expect(button(element, "show the last 30 seconds").hidden).toBe(true);
      button(element, "draw memory over time").click();
      paint();
      expect(figureOf()).toContain('"lanes"');
      expect(legend()).not.toContain("memory after the step");
    });

    test("a device without steps is drawn over time", () => {
      const { element } = withSteps();
      button(element, "draw the peak of each step").click();
      element.querySelectorAll<HTMLElement>("[role=tab]")[1]!.click();
      paint();
      expect(JSON.stringify(plotly.draw.mock.calls.at(-1))).toContain('"lanes"');
      expect(element.querySelector<HTMLElement>(".hfmem-lens")!.style.visibility).toBe("hidden");
    });
  });

  test("silence is shown during a run, and not after it", () => {
    for (const [state, text] of [
      ["running", /^no update for 30 s \(last update \d\d:\d\d:\d\d\)$/],
      ["stopped", /^stopped · /],
    ] as const) {
      const { element, life } = shown(snapshot({ status: { ...STATUS, state } }));
      vi.advanceTimersByTime(30_000);
      expect(element.querySelector(".hfmem-condition")!.textContent).toMatch(text);
      life.abort();
    }
  });

  test("another protocol shows one sentence instead of a chart", () => {
    const store = new Store(Date.now);
    const { element } = open(store);
    store.apply({ kind: "unsupported", protocol: 9 });
    vi.advanceTimersByTime(600);
    expect(element.querySelector(".hfmem-placeholder")!.textContent).toContain("sends 9");
    expect(plotly.draw).not.toHaveBeenCalled();
  });

  test("text from outside makes no element and no attribute of its own", () => {
    const store = new Store(Date.now);
    const { element } = open(store);
    const devices = SCHEMA.devices.map((device) => ({ ...device, name: HOSTILE }));
    const series = SCHEMA.series.map((each) => ({ ...each, label: HOSTILE }));
    const spans = [{ ...span(1, null, "cell", 0, 1), label: HOSTILE, outcome: `raised ${HOSTILE}` }];
    store.apply(snapshot({ schema: { ...SCHEMA, label: HOSTILE, devices, series }, spans }));
    paint();
    vi.advanceTimersByTime(11_000);
    expect(element.textContent).toContain(HOSTILE);
    expect(element.querySelector("img")).toBeNull();
  });

  test("a screen reader finds a sentence and a table of all devices", () => {
    const { element } = shown();
    vi.advanceTimersByTime(11_000);
    expect(element.querySelector("[role=img][aria-label^='Memory of test']")).not.toBeNull();
    expect(element.querySelectorAll("table tr")).toHaveLength(1 + SCHEMA.devices.length);
  });

  test("closing leaves no timer, observer, listener, subscription or plot behind", () => {
    const spies = [vi.spyOn(globalThis, "addEventListener"), vi.spyOn(document, "addEventListener")];
    const { store, life, element } = shown();
    store.apply(message("rows", 1, [level(5, 1)]));
    expect(active.size).toBeGreaterThan(0);
    life.abort();
    for (const { mock } of spies) {
      expect(mock.calls.length).toBeGreaterThan(0);
      // A listener that was added with the view's signal ends with it.
      for (const [, , options] of mock.calls) expect(options).toMatchObject({ signal: life.signal });
    }
    expect(active.size).toBe(0);
    expect(vi.getTimerCount()).toBe(0);
    expect(plotly.purge).toHaveBeenCalledTimes(1);
    expect(element.isConnected).toBe(false);
    plotly.draw.mockClear();
    store.apply(message("rows", 2, [level(6, 1)]));
    vi.advanceTimersByTime(5000);
    paint();
    expect(plotly.draw).not.toHaveBeenCalled();
  });

  test("the style sheet is there once, in its newest form, however many views", () => {
    const store = new Store(Date.now);
    const old = document.head.querySelector("style[data-hfmem-styles]") ?? document.createElement("style");
    old.setAttribute("data-hfmem-styles", "");
    old.textContent = "/* of an earlier version */";
    document.head.append(old);
    open(store);
    open(store);
    const [sheet, ...more] = document.querySelectorAll("style[data-hfmem-styles]");
    expect(more).toEqual([]);
    expect(sheet!.textContent).toContain(".hfmem-root");
  });

  describe("where child processes filled the devices", () => {
    const lead = `2 devices rose by 15.5 GiB each, by 2 child processes ${HOSTILE}`;
    const led = (more: object = {}) =>
      snapshot({ status: { ...STATUS, lead }, ...more }, [
        [0, Number.NaN, Number.NaN, 2 ** 20, 0, 0, 0],
        [1, Number.NaN, Number.NaN, 7 * 2 ** 20, 0, 0, 0],
      ]);

    test("the head leads with the device in use, and says whose it is", () => {
      const { element, view } = shown(led());
      const find = (name: string) => element.querySelector<HTMLElement>(`.hfmem-${name}`)!;
      expect(`${find("now").textContent} ${find("now-unit").textContent}`).toBe("7.00 MiB");
      expect(find("current").title).toBe("device_used");
      expect(find("notice").textContent).toBe(`●note: ${lead}`);
      expect(view.element.querySelector("img")).toBeNull();
    });

    test("a warning comes before it", () => {
      const store = new Store(Date.now);
      const findings = [{ kind: "budget", severity: "warn", title: "over", span: null }];
      store.apply(led({ findings }));
      const { element } = open(store);
      expect(element.querySelector(".hfmem-notice")!.textContent).toBe("▲warning: over");
    });
  });

  test("the outcome of a run is announced once, however many views show it, without changing figures", () => {
    const [one, two] = [new Store(Date.now), new Store(Date.now)];
    for (const store of [one, two]) open(store);
    const region = document.querySelector('[role="status"]')!;
    expect(document.querySelectorAll('[role="status"]')).toHaveLength(1);
    region.textContent = "";
    const heard: string[] = [];
    const hear = (seq: number, more: object) => {
      for (const store of [one, two]) {
        store.apply(
          message(seq === 0 ? "snapshot" : "rows", seq, [level(seq, 100)], { run: "said", ...more }),
        );
        vi.advanceTimersByTime(600);
        if (region.textContent !== "") heard.push(region.textContent!);
        region.textContent = "";
      }
    };
    const leak = (title: string) => [
      { kind: "leak", severity: "warn", title, span: 1, device: "cuda:0", time: 1 },
    ];
    hear(0, { spans: [span(1, null, "cell", 0, 1)] });
    hear(1, { status: { ...STATUS, elapsed: 2 } });
    hear(2, { findings: leak("+40 MiB a step") });
    hear(3, { findings: leak("+41 MiB a step") });
    hear(4, { status: { ...STATUS, state: "stopped", elapsed: 5 } });
    expect(heard).toEqual(["test: warning: +40 MiB a step", "test: stopped · 5.0 s"]);
  });

  test("a run that was over before it was shown is not announced", () => {
    const store = new Store(Date.now);
    store.apply(snapshot({ run: "over", status: { ...STATUS, state: "stopped" } }));
    open(store);
    vi.advanceTimersByTime(600);
    expect(document.querySelector('[role="status"]')!.textContent).toBe("");
  });

  test("the parts have their names as soon as they are drawn", () => {
    const store = new Store(Date.now);
    const more = { schema: PARTS_SCHEMA, spans: [span(1, null, "cell", 0, 1, 60)] };
    store.apply(snapshot(more, [partRow(0, 50), partRow(1, 60)]));
    const { element } = open(store);
    paint();
    const named = [...element.querySelectorAll<HTMLElement>(".hfmem-legend-part")].filter(
      (part) => !part.hidden,
    );
    expect(named.length).toBeGreaterThan(0);
  });

  test("a warning takes the place of figures that the chart has, and moves nothing", () => {
    const store = new Store(Date.now);
    const guides = [
      {
        device: "cuda:0",
        kind: "budget",
        label: "budget",
        start: 0,
        stop: null,
        first: 2 ** 30,
        last: 2 ** 30,
      },
    ];
    store.apply(snapshot({ guides, spans: [span(1, null, "cell", 0, 1)] }));
    const { element } = open(store);
    const find = (name: string) => element.querySelector<HTMLElement>(`.hfmem-${name}`)!;
    const parts = find("head").querySelectorAll("*").length;
    expect(find("budget").textContent).toBe("budget 1.00 GiB");
    expect(find("notice").hidden).toBe(true);
    const title = `over the budget ${HOSTILE}`;
    const findings = [{ kind: "budget", severity: "warn", title, span: 1 }];
    store.apply(message("rows", 1, [level(2, 100)], { findings }));
    vi.advanceTimersByTime(600);
    expect(find("notice").hidden).toBe(false);
    expect(find("notice").textContent).toBe(`▲warning: ${title}`);
    expect(find("notice").title).toBe(title);
    expect(find("head").querySelectorAll("*")).toHaveLength(parts);
  });
});
