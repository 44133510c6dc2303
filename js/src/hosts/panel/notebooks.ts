/** The page's notebooks, the runs of their kernels, and the notebook in front. */

import { defaultSettings, type Settings } from "../../core/settings.ts";
import type { Cell, KernelMessage, NotebookPanel, NotebookTracker } from "./jupyterlab.ts";
import { Loader } from "./loader.ts";
import { Outputs } from "./outputs.ts";
import { keepPicturesOut } from "./pictures.ts";
import { loadMemory, type Memory, saveMemory } from "./remembered.ts";
import { Runs } from "./runs.ts";
import { Subshell } from "./subshell.ts";

const ENDED = new Set(["restarting", "autorestarting", "terminating", "dead"]);

export interface Entry {
  notebook: NotebookPanel;
  kernel: string;
  runs: Runs;
  loader: Loader;
  /** A person's choices for the chart, which outlive a run. */
  settings: Settings;
}

export class Notebooks {
  private readonly entries = new Map<NotebookPanel, Entry>();
  private readonly listeners = new Set<() => void>();
  private readonly memory: Memory;

  constructor(
    private readonly tracker: NotebookTracker,
    private readonly storage: Storage,
  ) {
    this.memory = loadMemory(storage);
    tracker.forEach((notebook) => {
      this.add(notebook);
    });
    tracker.widgetAdded.connect((_, notebook) => this.add(notebook));
    tracker.currentChanged.connect(this.tell);
    addEventListener("pagehide", () => this.save());
  }

  get front(): Entry | null {
    const { currentWidget } = this.tracker;
    return currentWidget === null ? null : (this.entries.get(currentWidget) ?? null);
  }

  /** Calls `listener` when another notebook comes to the front, or any of them has new data. */
  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** A cell of one of the notebooks is about to run. */
  prepare(notebook: unknown, cell: Cell): void {
    this.entries.get(notebook as NotebookPanel)?.loader.prepare(cell);
  }

  private add(notebook: NotebookPanel): void {
    if (this.entries.has(notebook)) return;
    const { sessionContext } = notebook;
    const subshell = new Subshell(sessionContext);
    const loader = new Loader(sessionContext, subshell);
    const entry = { notebook, kernel: "", runs: new Runs(this.tell), loader, settings: defaultSettings() };
    const outputs = new Outputs(notebook);
    keepPicturesOut(notebook);
    const receive = (_: unknown, message: KernelMessage) => {
      entry.runs.receive(message);
      outputs.receive(message);
      subshell.receive(message);
    };
    const followStatus = (_: unknown, status: string) => {
      if (!ENDED.has(status)) return;
      entry.runs.disconnect();
      loader.forget();
      outputs.kernelEnded();
    };
    const followKernel = () => this.followKernel(entry);
    sessionContext.iopubMessage.connect(receive);
    sessionContext.statusChanged.connect(followStatus);
    sessionContext.kernelChanged.connect(followKernel);
    notebook.disposed.connect(() => {
      sessionContext.iopubMessage.disconnect(receive);
      sessionContext.statusChanged.disconnect(followStatus);
      sessionContext.kernelChanged.disconnect(followKernel);
      this.save();
      this.entries.delete(notebook);
      this.tell();
    });
    this.entries.set(notebook, entry);
    followKernel();
    this.tell();
  }

  private followKernel(entry: Entry): void {
    const kernel = entry.notebook.sessionContext.session?.kernel?.id ?? "";
    if (kernel === "") entry.runs.disconnect();
    else if (kernel !== entry.kernel) {
      entry.kernel = kernel;
      entry.runs = new Runs(this.tell, this.memory.get(kernel));
      this.tell();
    }
  }

  private save(): void {
    for (const { kernel, runs } of this.entries.values()) {
      if (kernel === "" || runs.isEmpty) continue;
      this.memory.delete(kernel); // the most recently used is kept longest
      this.memory.set(kernel, runs.remember());
    }
    saveMemory(this.storage, this.memory);
  }

  private readonly tell = (): void => {
    for (const listener of this.listeners) listener();
  };
}
