/** Stand-ins for what JupyterLab hands to its extensions. */

import type {
  Cell,
  CellOutputs,
  Kernel,
  KernelMessage,
  NotebookPanel,
  NotebookTracker,
  Output,
  OutputList,
  SessionContext,
  Signal,
} from "../src/hosts/panel/jupyterlab.ts";
import { frame } from "./frames.ts";

export class FakeSignal<Sender, Args> implements Signal<Sender, Args> {
  readonly slots = new Set<(sender: Sender, args: Args) => void>();
  connect = (slot: (sender: Sender, args: Args) => void) => this.slots.add(slot).size > 0;
  disconnect = (slot: (sender: Sender, args: Args) => void) => this.slots.delete(slot);

  emit(sender: Sender, args: Args): void {
    for (const slot of [...this.slots]) slot(sender, args);
  }
}

export class FakeSession implements SessionContext {
  session: SessionContext["session"];
  readonly ready = Promise.resolve();
  /** The widgets that the kernel has; it answers when this is there. */
  widgets: Promise<string[]> = Promise.resolve([]);
  /** What the page holds of it, newest last. */
  readonly comms: { target: string; isDisposed: boolean }[] = [];
  /** What the page had it run. */
  readonly executed: object[] = [];
  readonly iopubMessage = new FakeSignal<SessionContext, KernelMessage>();
  readonly kernelChanged = new FakeSignal<SessionContext, unknown>();
  readonly statusChanged = new FakeSignal<SessionContext, string>();

  constructor(kernel: string) {
    this.session = { kernel: this.kernel(kernel) };
  }

  private kernel(id: string): Kernel {
    const comms = async () => Object.fromEntries((await this.widgets).map((name) => [name, {}]));
    const createComm = (target: string) => {
      const comm = { target, isDisposed: false };
      this.comms.push(comm);
      return comm;
    };
    const requestExecute = (content: object) => {
      this.executed.push(content);
      return { done: Promise.reject(new Error("no such module")) };
    };
    const requestCommInfo = async () => ({ content: { comms: await comms() } });
    const asks = { createComm, requestCommInfo, requestExecute };
    return { id, ...asks, supportsSubshells: true, commsOverSubshells: "perCommTarget" };
  }

  say(...parameters: Parameters<typeof frame>): void {
    this.iopubMessage.emit(this, custom(...parameters));
  }

  changeKernel(id: string): void {
    this.session = { kernel: this.kernel(id) };
    this.kernelChanged.emit(this, undefined);
  }

  get listeners(): number {
    return this.iopubMessage.slots.size + this.kernelChanged.slots.size + this.statusChanged.slots.size;
  }
}

export class FakeOutputs implements OutputList {
  all: Output[] = [];
  get length(): number {
    return this.all.length;
  }
  get = (place: number) => this.all[place]!;
  set = (place: number, output: object) => {
    this.all[place] = output as Output;
  };
}

export class FakeNotebook implements NotebookPanel {
  readonly node = document.createElement("div");
  readonly parent = null;
  readonly title = { label: "notebook", caption: "", icon: null };
  readonly context = { ready: Promise.resolve() };
  readonly model = {
    cells: [{}, { outputs: new FakeOutputs() }] as CellOutputs[],
    contentChanged: new FakeSignal<unknown, unknown>(),
  } as NonNullable<NotebookPanel["model"]> & { cells: CellOutputs[]; collaborative?: boolean };
  readonly disposed = new FakeSignal<unknown, unknown>();
  readonly sessionContext: FakeSession;

  constructor(readonly id: string) {
    this.sessionContext = new FakeSession(`kernel of ${id}`);
  }

  setHidden(): void {}
}

export class FakeTracker implements NotebookTracker {
  currentWidget: NotebookPanel | null = null;
  activeCell: Cell | null = null;
  readonly activeCellChanged = new FakeSignal<NotebookTracker, Cell | null>();
  readonly currentChanged = new FakeSignal<NotebookTracker, NotebookPanel | null>();
  readonly widgetAdded = new FakeSignal<NotebookTracker, NotebookPanel>();
  private readonly notebooks: FakeNotebook[] = [];

  forEach(visit: (notebook: NotebookPanel) => void): void {
    this.notebooks.forEach(visit);
  }

  open(id: string): FakeNotebook {
    const notebook = new FakeNotebook(id);
    this.notebooks.push(notebook);
    this.widgetAdded.emit(this, notebook);
    this.show(notebook);
    return notebook;
  }

  show(notebook: NotebookPanel | null): void {
    this.currentWidget = notebook;
    this.currentChanged.emit(this, notebook);
  }
}

/** A message of a run as it stands on the IOPub channel. */
export function custom(...parameters: Parameters<typeof frame>): KernelMessage {
  const { content, buffers } = frame(...parameters);
  const data = { method: "custom", content };
  return { header: { msg_type: "comm_msg" }, content: { comm_id: "1", data }, buffers };
}
