// @vitest-environment jsdom
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import type { CustomHandler, Model } from "../src/hosts/anywidget.ts";
import { frame, level, STATUS } from "./frames.ts";
import { paint, preparePage } from "./page.ts";

vi.mock("../src/core/plotly.ts", () => ({ draw: vi.fn(async () => {}), purge: vi.fn() }));

class FakeModel implements Model {
  sent: unknown[] = [];
  history: unknown = {};
  private readonly handlers = new Map<string, Set<CustomHandler>>();

  get = () => this.history;
  send = (content: unknown) => this.sent.push(content);
  on = (event: string, handler: CustomHandler) => {
    this.handlers.set(event, (this.handlers.get(event) ?? new Set()).add(handler));
  };
  off = (event: string, handler: CustomHandler) => this.handlers.get(event)?.delete(handler);

  emit(event: string, ...message: Parameters<CustomHandler>): void {
    for (const handler of [...(this.handlers.get(event) ?? [])]) handler(...message);
  }

  get listeners(): number {
    return [...this.handlers.values()].reduce((sum, each) => sum + each.size, 0);
  }
}

function deliver(model: FakeModel, ...parameters: Parameters<typeof frame>): void {
  const { content, buffers } = frame(...parameters);
  model.emit("msg:custom", content, buffers);
}

function host(): HTMLElement {
  return document.body.appendChild(document.createElement("div"));
}

beforeEach(() => {
  vi.useFakeTimers({
    toFake: ["setTimeout", "setInterval", "clearTimeout", "clearInterval", "Date", "performance"],
  });
  preparePage();
});

afterEach(() => {
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

describe("chart.js as an anywidget front end", () => {
  async function start(model: FakeModel) {
    const { default: createWidget } = await import("../src/hosts/inline.ts");
    const widget = createWidget();
    const cleanup = widget.initialize({ model });
    return { widget, cleanup };
  }

  test("the history shows before any message", async () => {
    const model = new FakeModel();
    const { content, buffers } = frame("snapshot", 0, [level(0, 1), level(1, 2)]);
    model.history = { ...content, time: buffers[0], values: buffers[1] };
    const { widget } = await start(model);
    const el = host();
    widget.render({ model, el });
    paint();
    expect(el.querySelector<HTMLElement>(".hfmem-root")!.dataset.hfmemRows).toBe("2");
  });

  test("two views of one model show the same data", async () => {
    const model = new FakeModel();
    const { widget } = await start(model);
    const views = [host(), host()];
    for (const el of views) widget.render({ model, el });
    deliver(model, "snapshot", 0, [level(0, 1)]);
    paint();
    expect(views.map((el) => el.querySelector<HTMLElement>(".hfmem-root")!.dataset.hfmemRows)).toEqual([
      "1",
      "1",
    ]);
  });

  test("a look at a slow chart is reported, and again after 15 seconds at the earliest", async () => {
    const model = new FakeModel();
    const { widget } = await start(model);
    const el = host();
    widget.render({ model, el });
    deliver(model, "snapshot", 0, [level(0, 1)]);
    vi.advanceTimersByTime(5_000);
    const look = () => el.querySelector(".hfmem-root")!.dispatchEvent(new Event("pointerenter"));
    look();
    look();
    expect(model.sent).toEqual([{ kind: "seen" }]);
    vi.advanceTimersByTime(16_000);
    look();
    expect(model.sent).toEqual([{ kind: "seen" }, { kind: "seen" }]);
  });

  test("nothing is reported while updates come quickly", async () => {
    const model = new FakeModel();
    const { widget } = await start(model);
    const el = host();
    widget.render({ model, el });
    deliver(model, "snapshot", 0, [level(0, 1)]);
    vi.advanceTimersByTime(250);
    el.querySelector(".hfmem-root")!.dispatchEvent(new Event("pointerenter"));
    expect(model.sent).toEqual([]);
  });

  test("an interval that a person has set is sent once to each run that has another one", async () => {
    const { wantInterval } = await import("../src/hosts/interval.ts");
    const [one, other] = [new FakeModel(), new FakeModel()];
    await start(one);
    await start(other);
    deliver(one, "snapshot", 0, [level(0, 1)]);
    expect(one.sent).toEqual([]);
    wantInterval(2);
    deliver(one, "snapshot", 1, [level(1, 1)]);
    deliver(one, "rows", 2, [level(2, 1)]);
    deliver(other, "snapshot", 0, [level(0, 1)], { status: { ...STATUS, interval: 2 } });
    expect(one.sent).toEqual([{ kind: "interval", seconds: 2 }]);
    expect(other.sent).toEqual([]);
    wantInterval(5);
    deliver(one, "rows", 3, [level(3, 1)], { status: { ...STATUS, interval: 2 } });
    deliver(other, "snapshot", 1, [level(1, 1)], { status: { ...STATUS, state: "stopped" } });
    expect(one.sent).toEqual([2, 5].map((seconds) => ({ kind: "interval", seconds })));
    expect(other.sent).toEqual([]);
    wantInterval(0.1);
  });

  test("a loss asks for a snapshot once, and not again within five seconds", async () => {
    const model = new FakeModel();
    await start(model);
    deliver(model, "snapshot", 0, [level(0, 1)]);
    deliver(model, "rows", 2, [level(2, 1)]);
    deliver(model, "rows", 4, [level(4, 1)]);
    deliver(model, "snapshot", 5, [level(4, 1)]);
    deliver(model, "rows", 8, [level(8, 1)]);
    expect(model.sent).toEqual([{ kind: "resync" }]);
    vi.advanceTimersByTime(5000);
    deliver(model, "snapshot", 9, [level(8, 1)]);
    deliver(model, "rows", 12, [level(12, 1)]);
    expect(model.sent).toEqual([{ kind: "resync" }, { kind: "resync" }]);
  });

  test("a closed comm is shown until an update comes", async () => {
    const model = new FakeModel();
    const { widget } = await start(model);
    const el = host();
    widget.render({ model, el });
    const condition = () => el.querySelector<HTMLElement>(".hfmem-root")!.dataset.hfmemCondition;
    deliver(model, "snapshot", 0, [level(0, 1)]);
    model.emit("comm:close", undefined);
    vi.advanceTimersByTime(600);
    expect(condition()).toBe("silent");
    deliver(model, "rows", 1, [level(1, 1)]);
    vi.advanceTimersByTime(600);
    expect(condition()).toBe("running");
  });

  test("after both cleanups nothing is left", async () => {
    const model = new FakeModel();
    const { widget, cleanup } = await start(model);
    const el = host();
    const close = (await widget.render({ model, el })) as () => void;
    close();
    cleanup();
    expect(model.listeners).toBe(0);
    expect(vi.getTimerCount()).toBe(0);
    expect(el.childElementCount).toBe(0);
  });
});

describe("widget.js, the loader", () => {
  const KEY = Symbol.for("hfmem-widget/test");
  const shared = globalThis as unknown as Record<symbol, unknown>;
  /** A chart.js that writes down what it is given. */
  const CHART = `
    export default () => {
      const seen = (globalThis.seenByChart ??= []);
      return {
        initialize: () => () => {},
        receive: (content) => seen.push(content.seq),
        render: ({ el }) => { el.textContent = "chart"; return () => {}; },
      };
    };`;

  beforeEach(() => {
    delete shared[KEY];
    delete (globalThis as { seenByChart?: unknown }).seenByChart;
    const url = `data:text/javascript,${encodeURIComponent(CHART)}`;
    vi.stubGlobal("URL", Object.assign(URL, { createObjectURL: () => url, revokeObjectURL: () => {} }));
  });

  async function loader() {
    const { default: createLoader } = await import("../src/hosts/widget.ts");
    return createLoader();
  }

  test("initialize waits for nothing and keeps every message for the chart", async () => {
    const model = new FakeModel();
    const widget = await loader();
    expect(widget.initialize({ model })).toBeTypeOf("function");
    deliver(model, "snapshot", 7, [level(0, 1)]);
    const el = host();
    const rendered = widget.render({ model, el });
    await vi.waitFor(() => expect(model.sent).toEqual([{ kind: "bundle" }]));
    model.emit("msg:custom", { kind: "bundle" }, [new TextEncoder().encode(CHART)]);
    await rendered;
    expect(el.textContent).toBe("chart");
    expect((globalThis as { seenByChart?: unknown }).seenByChart).toContain(7);
  });

  test("a second widget on the page loads nothing", async () => {
    const [first, second] = [new FakeModel(), new FakeModel()];
    const one = await loader();
    one.initialize({ model: first });
    await vi.waitFor(() => expect(first.sent).toEqual([{ kind: "bundle" }]));
    first.emit("msg:custom", { kind: "bundle" }, [new TextEncoder().encode(CHART)]);
    await one.render({ model: first, el: host() });
    const two = await loader();
    two.initialize({ model: second });
    const el = host();
    await two.render({ model: second, el });
    expect(el.textContent).toBe("chart");
    expect(second.sent).toEqual([]);
  });

  test("the next widget asks again where the first was closed before its answer", async () => {
    const [first, second] = [new FakeModel(), new FakeModel()];
    const close = (await loader()).initialize({ model: first });
    await vi.waitFor(() => expect(first.sent).toEqual([{ kind: "bundle" }]));
    (close as () => void)();
    expect(first.listeners).toBe(0);
    const two = await loader();
    two.initialize({ model: second });
    await vi.waitFor(() => expect(second.sent).toEqual([{ kind: "bundle" }]));
    second.emit("msg:custom", { kind: "bundle" }, [new TextEncoder().encode(CHART)]);
    const el = host();
    await two.render({ model: second, el });
    expect(el.textContent).toBe("chart");
  });

  test("a page whose configuration cannot be read gets the chart from the kernel", async () => {
    const config = document.body.appendChild(document.createElement("script"));
    config.id = "jupyter-config-data";
    config.type = "application/json";
    config.textContent = "{";
    const model = new FakeModel();
    (await loader()).initialize({ model });
    await vi.waitFor(() => expect(model.sent).toEqual([{ kind: "bundle" }]));
  });

  test("code that does not run becomes a sentence", async () => {
    const model = new FakeModel();
    const widget = await loader();
    widget.initialize({ model });
    await vi.waitFor(() => expect(model.sent).toHaveLength(1));
    vi.stubGlobal("URL", Object.assign(URL, { createObjectURL: () => "data:text/javascript,throw 'oh'" }));
    model.emit("msg:custom", { kind: "bundle" }, [new Uint8Array(1)]);
    const el = host();
    await widget.render({ model, el });
    expect(el.textContent).toBe("The memory chart cannot be shown (oh); recording is not affected.");
    expect(model.listeners).toBe(0);
    expect(vi.getTimerCount()).toBe(0);
  });

  test("while no chart comes, the newest messages are kept and no more", async () => {
    const model = new FakeModel();
    const widget = await loader();
    widget.initialize({ model });
    await vi.waitFor(() => expect(model.sent).toHaveLength(1));
    for (let seq = 0; seq < 1000; seq++) deliver(model, "rows", seq, []);
    model.emit("msg:custom", { kind: "bundle" }, [new TextEncoder().encode(CHART)]);
    await widget.render({ model, el: host() });
    const seen = (globalThis as { seenByChart?: number[] }).seenByChart!;
    expect(seen.length).toBeLessThan(300);
    expect(seen).toContain(999);
  });

  test("after ten seconds without a message it says so, and still takes later ones", async () => {
    const model = new FakeModel();
    const widget = await loader();
    widget.initialize({ model });
    const el = host();
    const rendered = widget.render({ model, el });
    await vi.waitFor(() => expect(model.sent).toHaveLength(1));
    vi.advanceTimersByTime(10_000);
    expect(el.textContent).toMatch(/still loading/);
    model.emit("msg:custom", { kind: "bundle" }, [new TextEncoder().encode(CHART)]);
    await rendered;
    expect(el.textContent).toBe("chart");
  });
});
