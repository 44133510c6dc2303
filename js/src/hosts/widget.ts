/**
 * widget.js: the loader that every widget instance carries.
 *
 * anywidget sends `_esm` once for each instance (manzt/anywidget#628), so the 1.2 MB of chart.js come apart from it:
 * from the labextension's folder, once a page; or over the comm where no such folder is served.
 */

import type { BufferLike } from "../core/protocol.ts";
import type { ChartModule, Cleanup, CustomHandler, Definition, Life, Model } from "./anywidget.ts";

type Instance = ReturnType<ChartModule["default"]>;

const PATIENCE = 10_000;
const KEY = Symbol.for(`hfmem-widget/${CHART_HASH}`);
const shared = globalThis as unknown as Record<symbol, Promise<ChartModule> | undefined>;

export default (): Definition => {
  let ready: Promise<Instance>;
  return {
    initialize({ model, signal }: Life): Cleanup {
      const early: Parameters<CustomHandler>[] = [];
      const hold: CustomHandler = (...message) => early.push(message);
      let cleanup: Cleanup = () => {};
      const stop = () => {
        model.off("msg:custom", hold);
        cleanup();
      };
      model.on("msg:custom", hold);
      ready = loadChart(model).then((chart) => {
        const instance = chart.default();
        model.off("msg:custom", hold);
        if (!signal?.aborted) cleanup = instance.initialize(signal ? { model, signal } : { model });
        for (const message of early) instance.receive(...message);
        return instance;
      });
      signal?.addEventListener("abort", stop);
      return stop;
    },

    async render(life): Promise<Cleanup> {
      const timer = setTimeout(() => {
        life.el.textContent =
          "The memory chart is still loading; the numbers are being recorded all the same.";
      }, PATIENCE);
      const instance = await ready;
      clearTimeout(timer);
      life.el.textContent = "";
      return instance.render(life);
    },
  };
};

function loadChart(model: Model): Promise<ChartModule> {
  shared[KEY] ??= importFrom(chartUrl()).catch(() => importFromKernel(model));
  return shared[KEY];
}

async function importFrom(url: string | null): Promise<ChartModule> {
  if (url === null) throw new Error("no Jupyter server serves this page");
  return import(url);
}

/** `import(url)` in a host's page needs the whole address; Jupyter writes its own into the page. */
function chartUrl(): string | null {
  const config = JSON.parse(document.getElementById("jupyter-config-data")?.textContent || "{}");
  const base = config.baseUrl ?? document.body.dataset.baseUrl;
  const folder = config.fullLabextensionsUrl ?? (base === undefined ? null : `${base}lab/extensions`);
  if (folder === null) return null;
  return new URL(`${folder}/hfmem-widget/static/chart.js?v=${CHART_HASH}`, location.href).href;
}

/** Never gives up: a busy kernel answers when its cell ends. Until then, `render` has its sentence. */
function importFromKernel(model: Model): Promise<ChartModule> {
  return new Promise((resolve) => {
    const onMessage: CustomHandler = (content, buffers) => {
      if ((content as { kind?: string } | null)?.kind !== "bundle" || !buffers?.[0]) return;
      model.off("msg:custom", onMessage);
      importText(buffers[0]).then(resolve, () => {});
    };
    model.on("msg:custom", onMessage);
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
