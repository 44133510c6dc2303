/** The open spans of a run: `fine-tune › train › epoch 2 of 3 › step 17 of 100`. */

import type { Store } from "../../core/store.ts";

/** Outermost first; empty if none is open. */
export function openPath(store: Store): string[] {
  const { status, spans } = store;
  if (status?.state !== "running" || store.disconnected) return [];
  if (status.path) return status.path;
  return [...spans.values()].filter(({ stop }) => stop === null).map(({ label }) => label);
}
