// @vitest-environment jsdom
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import type { KernelMessage } from "../src/hosts/panel/jupyterlab.ts";
import { Notebooks } from "../src/hosts/panel/notebooks.ts";
import { type FakeNotebook, type FakeOutputs, type FakeSignal, FakeTracker } from "./signals.ts";

const VIEW = "application/vnd.jupyter.widget-view+json";
const CARD = { "text/html": "<b>the card</b>" };
const LOST = { "text/html": "not seen to its end" };

const marked = (id: string, data: Record<string, unknown>, lost: object = {}) => ({
  data,
  metadata: { "hfmem-widget": { display_id: id, lost } },
});
const card = () => marked("card", { "text/html": "watching …" }, LOST);
const chart = (model_id = "m1") => marked("chart", { [VIEW]: { model_id } });

const update = (id: string, data: object): KernelMessage => ({
  header: { msg_type: "update_display_data" },
  content: { data, metadata: {}, transient: { display_id: id } },
});

/** A page with a notebook that holds these outputs when it is read. */
async function open(...outputs: ReturnType<typeof marked>[]) {
  return openWith(Promise.resolve([]), ...outputs);
}

/** One whose kernel tells its widgets later. */
async function openWith(widgets: Promise<string[]>, ...outputs: ReturnType<typeof marked>[]) {
  const tracker = new FakeTracker();
  new Notebooks(tracker, sessionStorage);
  const notebook = tracker.open("a");
  notebook.sessionContext.widgets = widgets;
  const list = notebook.model.cells[1]!.outputs as FakeOutputs;
  list.all = outputs;
  await vi.advanceTimersByTimeAsync(0);
  const hear = (message: KernelMessage) =>
    notebook.sessionContext.iopubMessage.emit(notebook.sessionContext, message);
  return { list, hear, session: notebook.sessionContext, shown: () => list.all.map(({ data }) => data) };
}

beforeEach(() => {
  vi.useFakeTimers();
});

afterEach(() => {
  vi.useRealTimers();
});

describe("the outputs of a watch that an earlier page began", () => {
  test("are replaced by the kernel's update, as on the original page", async () => {
    const { hear, shown, list } = await open(card(), chart());
    hear(update("card", CARD));
    hear(update("chart", { plot: 1 }));
    await vi.advanceTimersByTimeAsync(5000);
    expect(shown()).toEqual([CARD, { plot: 1 }]);
    expect(list.all.map(({ metadata }) => metadata)).toEqual([{}, {}]);
  });

  test("say that no page saw the end if no update came", async () => {
    const { shown } = await open(card(), chart());
    await vi.advanceTimersByTimeAsync(5000);
    expect(shown()).toEqual([LOST, {}]);
  });

  test("are left to a kernel that is busy, and to a chart that it still feeds", async () => {
    let answer: (widgets: string[]) => void = () => {};
    const answered = new Promise<string[]>((resolve) => {
      answer = resolve;
    });
    const { shown } = await openWith(answered, chart("alive"), chart("closed"));
    const before = shown();
    await vi.advanceTimersByTimeAsync(60_000);
    expect(shown()).toEqual(before);
    answer(["alive"]);
    await vi.advanceTimersByTimeAsync(5000);
    expect(shown()).toEqual([before[0], {}]);
  });

  test("are not other outputs, whatever a notebook's metadata has", async () => {
    const odd = [
      null,
      7,
      "x",
      {},
      { display_id: 1, lost: {} },
      { display_id: "a" },
      { display_id: "a", lost: 1 },
    ];
    const outputs = odd.map((mark) => ({ data: { mark }, metadata: { "hfmem-widget": mark } }));
    const { hear, shown } = await open(...(outputs as unknown as ReturnType<typeof marked>[]));
    hear(update("a", CARD));
    hear({ header: { msg_type: "update_display_data" }, content: {} });
    await vi.advanceTimersByTimeAsync(5000);
    expect(shown()).toEqual(odd.map((mark) => ({ mark })));
  });
});

describe("the outputs of a watch that this page began", () => {
  test("are JupyterLab's to replace", async () => {
    const { list, hear, shown } = await open();
    list.all = [card()];
    hear(update("card", CARD));
    await vi.advanceTimersByTimeAsync(5000);
    expect(shown()).toEqual([{ "text/html": "watching …" }]);
  });

  test("are no longer running when the kernel restarts; the chart stays", async () => {
    const { list, session, shown } = await open();
    list.all = [card(), chart()];
    session.statusChanged.emit(session, "restarting");
    expect(shown()).toEqual([LOST, { [VIEW]: { model_id: "m1" } }]);
  });
});

describe("the outputs of a notebook that several people have open", () => {
  /** Two pages that have one list, to which what either of them changes comes at once. */
  async function share(outputs: ReturnType<typeof marked>[]) {
    const list: { all: FakeOutputs["all"] } = { all: outputs };
    const pages = [7, 3].map((clientID) => {
      const tracker = new FakeTracker();
      const notebook: FakeNotebook = tracker.open("a");
      const cell = notebook.model.cells[1]!;
      const own = cell.outputs as FakeOutputs;
      Object.defineProperty(own, "all", { get: () => list.all });
      const set = vi.spyOn(own, "set");
      Object.assign(cell, { sharedModel: { getOutputs: () => list.all } });
      const awareness = { clientID, getStates: () => new Map([3, 7].map((id) => [id, {}])) };
      Object.assign(notebook.model, { collaborative: true, sharedModel: { awareness } });
      new Notebooks(tracker, sessionStorage);
      const { sessionContext } = notebook;
      return {
        session: sessionContext,
        hear: (message: KernelMessage) => sessionContext.iopubMessage.emit(sessionContext, message),
        set,
      };
    });
    await vi.advanceTimersByTimeAsync(0);
    return { list, pages };
  }

  test("are replaced by one page if the page that ran the cell has not done so", async () => {
    const { list, pages } = await share([card(), chart()]);
    for (const { hear } of pages) hear(update("card", CARD));
    expect(list.all[0]!.data).not.toEqual(CARD);
    await vi.advanceTimersByTimeAsync(60_000);
    expect(list.all[0]!.data).toEqual(CARD);
    expect(pages.map(({ set }) => set.mock.calls.filter(([place]) => place === 0).length)).toEqual([0, 1]);
  });

  test("are left alone where the cell has begun anew since the kernel restarted", async () => {
    const { list, pages } = await share([card()]);
    for (const { session } of pages) session.statusChanged.emit(session, "restarting");
    const anew = marked("another", { "text/html": "watching …" }, LOST);
    list.all = [anew];
    await vi.advanceTimersByTimeAsync(60_000);
    expect(list.all[0]).toBe(anew);
  });

  test("are left alone where another page has replaced them, whatever this one still shows", async () => {
    const { list, pages } = await share([card()]);
    for (const { hear } of pages) hear(update("card", CARD));
    list.all = [{ data: CARD, metadata: {} }];
    await vi.advanceTimersByTimeAsync(60_000);
    for (const { set } of pages) expect(set).not.toHaveBeenCalled();
  });

  test("take no picture from plotly's renderer, but everything else", async () => {
    const taken: object[] = [];
    const plotly = (uid: string) => ({
      data: { "application/vnd.plotly.v1+json": { data: [{ uid }] } } as Record<string, unknown>,
      metadata: {},
      setData: (options: object) => void taken.push(options),
    });
    const tracker = new FakeTracker();
    const notebook = tracker.open("a");
    const list = notebook.model.cells[1]!.outputs as FakeOutputs;
    Object.assign(notebook.model, { collaborative: true });
    new Notebooks(tracker, sessionStorage);
    await vi.advanceTimersByTimeAsync(0);
    list.all = [plotly("hfmem"), plotly("theirs")];
    (notebook.model.contentChanged as FakeSignal<unknown, unknown>).emit(null, undefined);
    for (const { setData } of list.all) {
      setData!({ data: { "image/png": "…" } });
      setData!({ data: { "text/plain": "x" } });
    }
    const [picture, text] = [{ data: { "image/png": "…" } }, { data: { "text/plain": "x" } }];
    expect(taken).toEqual([text, picture, text]);
  });
});
