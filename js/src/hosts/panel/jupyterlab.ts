/** The used parts of JupyterLab and Lumino, written down by hand: their type packages have 380 MB. */

import type { BufferLike } from "../../core/protocol.ts";

export interface Signal<Sender, Args> {
  connect(slot: (sender: Sender, args: Args) => void): boolean;
  disconnect(slot: (sender: Sender, args: Args) => void): boolean;
}

export interface KernelMessage {
  header: { msg_type: string };
  content: unknown;
  buffers?: BufferLike[];
}

/** From JupyterLab 4.4 on, which has subshells. */
export interface Kernel {
  readonly id: string;
  readonly supportsSubshells?: boolean;
  readonly commsOverSubshells?: string;
  createComm(target: string): { readonly isDisposed: boolean };
  requestExecute(content: { code: string; silent: boolean; store_history: boolean }): {
    readonly done: Promise<unknown>;
  };
  requestCommInfo(of: { target_name: string }): Promise<{ content: { comms?: Record<string, unknown> } }>;
}

export interface SessionContext {
  readonly ready: Promise<unknown>;
  readonly session: { kernel: Kernel | null } | null;
  /** Its signals follow the session from kernel to kernel. */
  readonly iopubMessage: Signal<SessionContext, KernelMessage>;
  readonly kernelChanged: Signal<SessionContext, unknown>;
  readonly statusChanged: Signal<SessionContext, string>;
}

export interface Widget {
  id: string;
  readonly node: HTMLElement;
  readonly parent: Widget | null;
  readonly title: { caption: string; icon: unknown };
  readonly disposed: Signal<unknown, unknown>;
  setHidden(hidden: boolean): void;
}

/** Lumino's relative sizes: shares of the width, one for each child from left to right. */
export interface SplitPanel extends Widget {
  readonly widgets: readonly Widget[];
  relativeSizes(): number[];
  setRelativeSizes(sizes: number[]): void;
}

export interface Output {
  readonly data: Record<string, unknown>;
  readonly metadata: Record<string, unknown>;
  /** Called by renderers. */
  setData?(options: { data?: Record<string, unknown> }): void;
}

/** The outputs of a cell. */
export interface OutputList {
  readonly length: number;
  get(place: number): Output;
  set(place: number, output: object): void;
}

export interface CellOutputs {
  /** Only code cells have outputs. */
  readonly outputs?: OutputList;
  /** The data that all people who share the notebook have. */
  readonly sharedModel?: { getOutputs?(): { readonly metadata?: unknown }[] };
}

export interface NotebookPanel extends Widget {
  readonly title: Widget["title"] & { label: string };
  readonly context: { readonly ready: Promise<unknown> };
  /** Null before the notebook is read. */
  readonly model: {
    readonly cells: Iterable<CellOutputs>;
    readonly collaborative?: boolean;
    readonly contentChanged?: Signal<unknown, unknown>;
    /** The pages with the notebook open that this page knows of, including itself. */
    readonly sharedModel?: {
      readonly awareness?: { readonly clientID: number; getStates(): ReadonlyMap<number, unknown> };
    };
  } | null;
  readonly sessionContext: SessionContext;
}

export interface Cell {
  readonly readOnly: boolean;
  readonly model: {
    readonly type: string;
    readonly sharedModel: {
      getSource(): string;
      updateSource(start: number, end: number, value: string): void;
    };
  };
}

export interface NotebookTracker {
  /** The notebook in front, or the last one that was in front. */
  readonly currentWidget: NotebookPanel | null;
  /** The selected cell of that notebook. */
  readonly activeCell: Cell | null;
  readonly activeCellChanged: Signal<NotebookTracker, Cell | null>;
  readonly currentChanged: Signal<NotebookTracker, NotebookPanel | null>;
  readonly widgetAdded: Signal<NotebookTracker, NotebookPanel>;
  forEach(visit: (notebook: NotebookPanel) => void): void;
}

export interface Application {
  readonly shell: {
    add(widget: Widget, area: string, options: { rank: number }): void;
    activateById(id: string): void;
  };
  readonly commands: {
    addCommand(
      id: string,
      command: { label: string; caption: string; icon?: unknown; execute(): void; isEnabled?(): boolean },
    ): unknown;
    notifyCommandChanged(id: string): void;
  };
  readonly restored: Promise<unknown>;
}

export interface CommandPalette {
  addItem(item: { command: string; category: string }): unknown;
}

export interface LayoutRestorer {
  add(widget: Widget, name: string): void;
}

export interface LoadedSettings {
  /** The current settings, with defaults for those that are not set. */
  readonly composite: Record<string, unknown>;
  readonly changed: Signal<unknown, unknown>;
}

export interface SettingRegistry {
  load(plugin: string): Promise<LoadedSettings>;
  set(plugin: string, key: string, value: boolean): Promise<void>;
}

export interface Translations {
  __(text: string, ...values: unknown[]): string;
}

export interface Translator {
  load(domain: string): Translations;
}

export interface StatusBar {
  registerStatusItem(
    id: string,
    item: { item: Widget; align: "left" | "middle" | "right"; rank: number; isActive(): boolean },
  ): unknown;
}

/** The shared modules, as far as they are used; tokens are only handed back. */
export interface SharedModules {
  "@jupyterlab/application": { ILayoutRestorer: unknown };
  "@jupyterlab/apputils": { ICommandPalette: unknown };
  "@jupyterlab/notebook": {
    INotebookTracker: unknown;
    NotebookActions?: { executionScheduled?: Signal<unknown, { notebook: { parent: unknown }; cell: Cell }> };
  };
  "@jupyterlab/settingregistry": { ISettingRegistry: unknown };
  "@jupyterlab/statusbar": { IStatusBar: unknown };
  "@jupyterlab/translation": { ITranslator: unknown };
  "@jupyterlab/ui-components": { LabIcon: new (options: { name: string; svgstr: string }) => unknown };
  "@lumino/widgets": { Widget: new (options: { node: HTMLElement }) => Widget };
}

export interface Plugin {
  id: string;
  description: string;
  autoStart: boolean;
  requires: unknown[];
  optional: unknown[];
  activate(app: Application, ...services: unknown[]): void;
}
