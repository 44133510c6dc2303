/** What anywidget hands to a front end, as far as it is used here. */

import type { BufferLike } from "../core/protocol.ts";

export type CustomHandler = (content: unknown, buffers?: BufferLike[]) => void;

export interface Model {
  get(name: string): unknown;
  on(event: string, handler: CustomHandler): void;
  off(event: string, handler: CustomHandler): void;
  send(content: unknown): void;
}

/** `signal` came with anywidget 0.11; older hosts call the returned function instead. */
export interface Life {
  model: Model;
  signal?: AbortSignal;
}

export interface ViewLife extends Life {
  el: HTMLElement;
}

export type Cleanup = () => void;

export interface Definition {
  initialize(life: Life): Cleanup;
  render(life: ViewLife): Cleanup | Promise<Cleanup>;
}

/** The module that chart.js is: a definition, and a way to hand it what came before it was there. */
export interface ChartModule {
  default(): Definition & { receive: CustomHandler };
}
