/**
 * widget.js: the loader that every widget instance carries.
 *
 * anywidget sends `_esm` once for each instance (manzt/anywidget#628), so the 1.2 MB of chart.js come separately: from
 * the labextension's folder, once for each page; or over the comm if no such folder is served.
 */

import type { BufferLike } from "../core/protocol.ts";
import { chartUrl } from "./address.ts";
import type { ChartModule, Cleanup, CustomHandler, Definition, Life, Model } from "./anywidget.ts";

type Instance = ReturnType<ChartModule["default"]>;

const PATIENCE = 10_000;
/** Messages that are dropped while chart.js is missing are made up for by a later snapshot. */
const HELD_MESSAGES = 256;
const RECORDED = "recording is not affected.";
const KEY = Symbol.for(`hfmem-widget/${CHART_HASH}`);
const shared = globalThis as unknown as Record<symbol, Promise<ChartModule> | undefined>;

export default (): Definition => {
  let ready: Promise<Instance>;
  return {
    initialize({ model, signal }: Life): Cleanup {
      const life = new AbortController();
      const stop = () => life.abort();
      signal?.addEventListener("abort", stop);
      const early: Parameters<CustomHandler>[] = [];
      const hold: CustomHandler = (...message) => {
        early.push(message);
        if (early.length > HELD_MESSAGES) early.shift();
      };
      const letGo = () => model.off("msg:custom", hold);
      model.on("msg:custom", hold);
      life.signal.addEventListener("abort", letGo);
      ready = loadChart(model, life.signal).then((chart) => {
        const instance = chart.default();
        letGo();
        if (life.signal.aborted) return instance;
        instance.initialize({ model, signal: life.signal });
        for (const message of early) instance.receive(...message);
        return instance;
      });
      // `render` shows what is wrong.
      ready.catch(letGo);
      return stop;
    },

    async render(life): Promise<Cleanup> {
      const say = (text: string) => {
        life.el.textContent = text;
      };
      const timer = setTimeout(say, PATIENCE, `The memory chart is still loading; ${RECORDED}`);
      try {
        const instance = await ready;
        say("");
        return await instance.render(life);
      } catch (error) {
        say(`The memory chart cannot be shown (${error}); ${RECORDED}`);
        return () => {};
      } finally {
        clearTimeout(timer);
      }
    },
  };
};

async function loadChart(model: Model, signal: AbortSignal): Promise<ChartModule> {
  shared[KEY] ??= importFromServer();
  try {
    return await shared[KEY];
  } catch {
    // Each widget requests it, since the one that did so first may be closed before the answer.
    const chart = await importText(await bundleFromKernel(model, signal));
    shared[KEY] = Promise.resolve(chart);
    return chart;
  }
}

async function importFromServer(): Promise<ChartModule> {
  const url = chartUrl();
  if (url === null) throw new Error("no Jupyter server serves this page");
  return import(url);
}

/** Never gives up, since a busy kernel answers when its cell ends. Until then, `render` shows its sentence. */
function bundleFromKernel(model: Model, signal: AbortSignal): Promise<BufferLike> {
  return new Promise((resolve) => {
    const listen: CustomHandler = (content, buffers) => {
      if ((content as { kind?: string } | null)?.kind !== "bundle" || !buffers?.[0]) return;
      letGo();
      resolve(buffers[0]);
    };
    const letGo = () => model.off("msg:custom", listen);
    model.on("msg:custom", listen);
    signal.addEventListener("abort", letGo);
    model.send({ kind: "bundle" });
  });
}

async function importText(buffer: BufferLike): Promise<ChartModule> {
  const url = URL.createObjectURL(new Blob([buffer as BlobPart], { type: "text/javascript" }));
  try {
    return await import(url);
  } finally {
    URL.revokeObjectURL(url);
  }
}
