/** What one kernel has told: a store for each run, kept up to date whether anybody looks or not. */

import { decode, type Message } from "../../core/protocol.ts";
import { Store } from "../../core/store.ts";
import { type CellFacts, cellsOf, MOST_CELLS } from "./cells.ts";
import type { KernelMessage } from "./jupyterlab.ts";
import { type Frame, fromFrame, type Remembered, toFrame } from "./remembered.ts";

/** Of earlier runs only what the table of cells says is kept. */
const MOST_RUNS = 4;

export class Runs {
  /** Whether a run asked for the panel while it went on. */
  wantsPanel = false;
  /** The kernel restarted or is gone, and what it held with it. */
  isLost: boolean;

  /** Those that go on in the order in which they began, those that are over in that of their last words. */
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

  /** Takes a message of the kernel's IOPub channel. What others say there is not ours to look at. */
  receive({ header, content, buffers = [] }: KernelMessage): void {
    if (header.msg_type !== "comm_msg") return;
    const told = customContent(content);
    if (told === null) return;
    const message = decode(told, buffers);
    if (message === null) return;
    // The last words of a kernel come after it was said to be gone; only a new run says that there is one again.
    if (!this.stores.has(told.run)) this.isLost = false;
    const store = this.apply(message, told.run);
    this.wantsPanel ||= store.status?.state === "running" && store.schema?.panel !== false;
    this.onChange();
  }

  /** The run to show: of those that go on the one that began last, else the one that ended last. */
  get current(): Store | null {
    const newest = [...this.stores.values()].reverse();
    return newest.find(isLive) ?? newest[0] ?? null;
  }

  /** The cells and blocks that were watched, newest first. */
  get cells(): CellFacts[] {
    const known = [...this.stores.values()].flatMap(cellsOf);
    return [...known, ...this.past].sort((a, b) => b.startedAt - a.startedAt).slice(0, MOST_CELLS);
  }

  get isEmpty(): boolean {
    return this.stores.size === 0 && this.past.length === 0;
  }

  /** What ran in the kernel has ended, whatever was told last. */
  disconnect(): void {
    this.isLost = true;
    for (const store of this.stores.values()) if (isLive(store)) store.disconnect();
    this.onChange();
  }

  /** Forgets what has ended. */
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

  /** The oldest that have ended go first; what goes on stays as long as there are not far too many. */
  private letGo(): void {
    for (const [run, store] of this.stores) {
      if (this.stores.size <= MOST_RUNS) return;
      if (isLive(store) && this.stores.size <= 4 * MOST_RUNS) continue;
      this.past = [...cellsOf(store), ...this.past].slice(0, MOST_CELLS);
      this.stores.delete(run);
    }
  }
}

/** A run of which only rows came so far goes on, too. */
function isLive({ status, disconnected, schema }: Store): boolean {
  return !disconnected && (schema === null || status?.state === "running");
}

/** What is inside of ipywidgets' envelope of a custom message, if it belongs to a run. */
function customContent(content: unknown): { run: string } | null {
  const { data } = (content ?? {}) as { data?: { method?: unknown; content?: { run?: unknown } } };
  const told = data?.method === "custom" ? data.content : null;
  return typeof told?.run === "string" ? (told as { run: string }) : null;
}
