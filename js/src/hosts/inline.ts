/** chart.js: the chart as an anywidget front end, its parts for other hosts, and the chart of a report. */

import { decode, decodeHistory } from "../core/protocol.ts";
import { Store } from "../core/store.ts";
import { View } from "../core/view.ts";
import type { ChartModule, Cleanup, CustomHandler, Life, ViewLife } from "./anywidget.ts";
import { wantedInterval } from "./interval.ts";
import { openPageOfReport } from "./report.ts";
import { SEEN } from "./seen.ts";

export { decode, Store, View };

const SEEN_EVERY = 15_000;
const RESYNC_AT_MOST_EVERY = 5_000;

/** One store for each model, whatever the number of its views. */
const createWidget: ChartModule["default"] = () => {
  let store = new Store(Date.now);
  let tell: Tell = () => {};
  let sentInterval: number | undefined;
  const receive: CustomHandler = (content, buffers = []) => {
    store.apply(decode(content, buffers));
    tellInterval();
  };
  /** Sent once to each run that has another interval; the kernel knows which watches set their own. */
  const tellInterval = () => {
    const wanted = wantedInterval();
    const { status } = store;
    if (wanted === undefined || wanted === sentInterval || status?.state !== "running") return;
    sentInterval = wanted;
    if (status.interval !== wanted) tell("interval", 0, { seconds: wanted });
  };

  return {
    receive,

    /** This returns at once, since anywidget holds messages back until then. */
    initialize({ model, signal }: Life): Cleanup {
      tell = throttledSender(model);
      store = new Store(Date.now, () => tell("resync", RESYNC_AT_MOST_EVERY));
      store.apply(decodeHistory(model.get("_history")));
      const onClosed = () => store.disconnect();
      const events: [string, CustomHandler][] = [
        ["msg:custom", receive],
        ["comm:close", onClosed],
        ["comm_live_update", onClosed],
      ];
      for (const [event, handler] of events) model.on(event, handler);
      const onSeen = ({ detail }: CustomEventInit) => {
        if (detail === store.run) tell("seen", SEEN_EVERY);
      };
      addEventListener(SEEN, onSeen);
      const cleanup = () => {
        removeEventListener(SEEN, onSeen);
        for (const [event, handler] of events) model.off(event, handler);
      };
      signal?.addEventListener("abort", cleanup);
      return cleanup;
    },

    render({ el, signal }: ViewLife): Cleanup {
      const life = new AbortController();
      const cleanup = () => life.abort();
      if (signal?.aborted) return cleanup;
      signal?.addEventListener("abort", cleanup, { once: true, signal: life.signal });
      new View(el, store, { signal: life.signal, onSeen: () => tell("seen", SEEN_EVERY) });
      return cleanup;
    },
  };
};

export default createWidget;

openPageOfReport();

type Tell = (kind: string, pause: number, more?: Record<string, unknown>) => void;

/** Sends `{kind}`, but the same kind only after its pause; errors of a dead comm are ignored. */
function throttledSender(model: Life["model"]): Tell {
  const sentAt = new Map<string, number>();
  return (kind, pause, more = {}) => {
    const now = Date.now();
    if (now - (sentAt.get(kind) ?? Number.NEGATIVE_INFINITY) < pause) return;
    sentAt.set(kind, now);
    try {
      model.send({ kind, ...more });
    } catch {
      // The kernel is gone, and the chart says so after some silence.
    }
  };
}
