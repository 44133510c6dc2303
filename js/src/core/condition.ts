/** The state of the run, in one short sentence. */

import { formatClock, formatDuration } from "./format.ts";
import { PROTOCOL } from "./protocol.ts";
import type { Store } from "./store.ts";

export interface Condition {
  kind: "waiting" | "running" | "stopped" | "failed" | "silent" | "unsupported";
  text: string;
}

const SILENT_INTERVALS = 10;
/** Messages come up to four times a second, and every ten seconds if a long run is not visible. */
const LEAST_SILENCE = 12_000;
const SILENT_PACES = 3;

export function conditionOf(store: Store, now: number): Condition {
  if (store.unsupported !== null) {
    const text = `Reload the page: it reads protocol ${PROTOCOL}, the kernel sends ${store.unsupported}.`;
    return { kind: "unsupported", text };
  }
  const { status } = store;
  if (store.schema === null || status === null)
    return { kind: "waiting", text: "waiting for the first sample" };
  const elapsed = formatDuration(status.elapsed);
  if (status.state === "failed") return { kind: "failed", text: status.text || "the watch failed" };
  if (status.state === "stopped") return { kind: "stopped", text: `stopped · ${elapsed}` };
  const silence = now - store.heardAt;
  const last = formatClock(store.heardAt);
  if (store.disconnected) return { kind: "silent", text: `kernel stopped (last update ${last})` };
  // Between two cells no message comes.
  if (isBetweenCells(store)) return { kind: "running", text: "between cells" };
  const patience = Math.max(
    SILENT_INTERVALS * 1000 * status.interval,
    LEAST_SILENCE,
    SILENT_PACES * store.pace,
  );
  if (silence > patience) {
    return { kind: "silent", text: `no update for ${Math.round(silence / 1000)} s (last update ${last})` };
  }
  return { kind: "running", text: `running · ${elapsed}` };
}

/** Whether the watch is of all cells, and none is running. */
export function isBetweenCells({ status, spans, ranks }: Store): boolean {
  const isOver = spans.size > 0 && [...spans.values()].every(({ stop }) => stop !== null);
  return isOver && ranks === null && status?.path === undefined;
}
