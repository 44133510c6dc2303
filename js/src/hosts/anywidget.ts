/** The part of anywidget's interface that is used here. */

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

/** The module of chart.js: a definition, and a function that takes the messages from before it was loaded. */
export interface ChartModule {
  default(): Definition & { receive: CustomHandler };
}
