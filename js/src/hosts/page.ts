/** The chart in a page of its own: it takes frames, and sends nothing. */

import { type BufferLike, decode } from "../core/protocol.ts";
import { Store } from "../core/store.ts";
import { View, type ViewOptions } from "../core/view.ts";

export interface Page {
  view: View;
  receive(content: unknown, buffers: BufferLike[]): void;
  close(): void;
}

export function openPage(host: HTMLElement, options: Omit<ViewOptions, "signal"> = {}): Page {
  const life = new AbortController();
  const store = new Store(options.clock ?? Date.now);
  const view = new View(host, store, { ...options, signal: life.signal });
  return {
    view,
    receive: (content, buffers) => store.apply(decode(content, buffers)),
    close: () => life.abort(),
  };
}
