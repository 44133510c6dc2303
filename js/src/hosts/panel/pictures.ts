/**
 * Keeps plotly's pictures of our charts out of a shared notebook.
 *
 * plotly's renderer adds a picture to the output that it draws, and so to the notebook. If two people have it open,
 * both pages replace that output at once, and it appears twice.
 */

import type { NotebookPanel, Output } from "./jupyterlab.ts";

const PLOTLY = "application/vnd.plotly.v1+json";
const PICTURE = "image/png";
/** The `uid` of the first trace (`view/chart/figure.py`). */
const OURS = "hfmem";

export function keepPicturesOut(notebook: NotebookPanel): void {
  const guarded = new WeakSet<Output>();
  const guard = () => {
    for (const { outputs } of notebook.model?.cells ?? []) {
      for (let place = 0; place < (outputs?.length ?? 0); place++) {
        const output = outputs!.get(place);
        if (guarded.has(output) || !isOurs(output.data)) continue;
        guarded.add(output);
        refusePicture(output);
      }
    }
  };
  void notebook.context.ready.then(() => {
    if (!notebook.model?.collaborative) return;
    notebook.model.contentChanged?.connect(guard);
    guard();
  });
}

function refusePicture(output: Output): void {
  const set = output.setData?.bind(output);
  if (set === undefined) return;
  output.setData = (options) => {
    if (options.data?.[PICTURE] === undefined) set(options);
  };
}

function isOurs(data: Record<string, unknown>): boolean {
  const { data: traces } = (data[PLOTLY] ?? {}) as { data?: { uid?: unknown }[] };
  return Array.isArray(traces) && traces[0]?.uid === OURS;
}
