/** The runs of one kernel: a store for each, updated whether or not it is visible. */

import { decode, type Message } from "../../core/protocol.ts";
import { Store } from "../../core/store.ts";
import { type CellFacts, cellsOf, MOST_CELLS } from "./cells.ts";
import type { KernelMessage } from "./jupyterlab.ts";
import { type Frame, fromFrame, type Remembered, toFrame } from "./remembered.ts";

/** Of earlier runs only the rows of the table of cells are kept. */
const MOST_RUNS = 4;

export class Runs {
  /** Whether a running run has asked for the panel. */
  wantsPanel = false;
  /** Whether the kernel restarted or is gone, and its objects with it. */
  isLost: boolean;

  /** Running ones in the order in which they began, ended ones in that of their last messages. */
  private readonly stores = new Map<string, Store>();
  private past: CellFacts[];

  constructor(
    private readonly onChange: () => void,
    remembered: Remembered = { frames: [], past: [], isLost: false },
    private readonly clock: () => number = Date.now,
  ) {
    this.past = remembered.past;
    this.isLost = remembered.isLost;
    for (const frame of remembered.frames) {
      const message = fromFrame(frame);
      if (message === null || !("run" in message)) continue;
      const store = this.apply(message, message.run);
      if (frame.lostAt === null) continue;
      store.heardAt = frame.lostAt;
      store.disconnect();
    }
  }

  /** Takes a message of the kernel's IOPub channel; those of other libraries are ignored. */
  receive({ header, content, buffers = [] }: KernelMessage): void {
    if (header.msg_type !== "comm_msg") return;
    const custom = customContent(content);
    if (custom === null) return;
    const message = decode(custom, buffers);
    if (message === null) return;
    // A kernel's last messages may come after its end was reported; only a new run means that there is one again.
    if (!this.stores.has(custom.run)) this.isLost = false;
    const store = this.apply(message, custom.run);
    this.wantsPanel ||= store.status?.state === "running" && store.schema?.panel !== false;
    this.onChange();
  }

  /** The run to show: the newest running one, else the one that ended last. */
  get current(): Store | null {
    const newest = [...this.stores.values()].reverse();
    return newest.find(isLive) ?? newest[0] ?? null;
  }

  /** The watched cells and blocks, newest first. */
  get cells(): CellFacts[] {
    const known = [...this.stores.values()].flatMap(cellsOf);
    return [...known, ...this.past].sort((a, b) => b.startedAt - a.startedAt).slice(0, MOST_CELLS);
  }

  get isEmpty(): boolean {
    return this.stores.size === 0 && this.past.length === 0;
  }

  /** All runs of the kernel have ended, whatever their last message was. */
  disconnect(): void {
    this.isLost = true;
    for (const store of this.stores.values()) if (isLive(store)) store.disconnect();
    this.onChange();
  }

  /** Forgets the runs that have ended. */
  clear(): void {
    for (const [run, store] of this.stores) if (!isLive(store)) this.stores.delete(run);
    this.past = [];
    this.onChange();
  }

  remember(): Remembered {
    const frames = [...this.stores.values()].map(toFrame).filter((frame): frame is Frame => frame !== null);
    return { frames, past: this.past, isLost: this.isLost };
  }

  private apply(message: Message, run: string): Store {
    let store = this.stores.get(run);
    if (!store) {
      store = new Store(this.clock);
      this.stores.set(run, store);
      this.letGo();
    }
    store.apply(message);
    if (!isLive(store)) {
      this.stores.delete(run);
      this.stores.set(run, store);
    }
    return store;
  }

  /** Drops the runs that ended first; running ones stay unless there are far too many. */
  private letGo(): void {
    for (const [run, store] of this.stores) {
      if (this.stores.size <= MOST_RUNS) return;
      if (isLive(store) && this.stores.size <= 4 * MOST_RUNS) continue;
      this.past = [...cellsOf(store), ...this.past].slice(0, MOST_CELLS);
      this.stores.delete(run);
    }
  }
}

/** A run without a status, of which only rows came so far, is running, too. */
function isLive({ status, disconnected, schema }: Store): boolean {
  return !disconnected && (schema === null || status?.state === "running");
}

/** The contents of ipywidgets' custom message, if it belongs to a run. */
function customContent(content: unknown): { run: string } | null {
  const { data } = (content ?? {}) as { data?: { method?: unknown; content?: { run?: unknown } } };
  const inner = data?.method === "custom" ? data.content : null;
  return typeof inner?.run === "string" ? (inner as { run: string }) : null;
}
