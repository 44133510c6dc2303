/**
 * The outputs that a watch replaces when it ends, on a page that has forgotten which they are.
 *
 * JupyterLab knows an output's display id only as long as the page lives on which its cell was run, and a widget that
 * its kernel has closed is "model not found" for good. So the kernel writes the id into the metadata of such an
 * output, with what stands there if nothing replaces it (`MARK` in `view/screen.py`).
 */

import type { KernelMessage, NotebookPanel, OutputList } from "./jupyterlab.ts";

const MARK = "hfmem-widget";
const WIDGET = "application/vnd.jupyter.widget-view+json";
const TARGET = "jupyter.widget";
/** What the kernel said last may come after its answer, on another channel. */
const PATIENCE = 1000;

type Data = Record<string, unknown>;

interface Marked {
  id: string;
  lost: Data;
  widget: string | undefined;
  set(data: Data, metadata: Data): void;
}

export class Outputs {
  /** The display ids of those that an earlier page left. */
  private readonly left = new Set<string>();

  constructor(private readonly notebook: NotebookPanel) {
    void notebook.context.ready.then(() => this.begin());
  }

  /** Takes a message of the kernel's IOPub channel. */
  receive({ header, content }: KernelMessage): void {
    if (this.left.size === 0 || header.msg_type !== "update_display_data") return;
    const { data, metadata, transient } = content as { data?: Data; metadata?: Data; transient?: Data };
    const id = transient?.display_id;
    if (typeof id !== "string" || !this.left.has(id)) return;
    for (const one of this.marked()) if (one.id === id) one.set(data ?? {}, metadata ?? {});
  }

  /** Whoever would have replaced them is gone: a chart stays as long as the page has it, a card does not. */
  kernelEnded(): void {
    for (const one of this.marked()) if (one.widget === undefined) one.set(one.lost, {});
  }

  private async begin(): Promise<void> {
    for (const { id } of this.marked()) this.left.add(id);
    if (this.left.size === 0) return;
    const alive = await this.widgets();
    setTimeout(() => {
      for (const one of this.marked()) {
        if (this.left.has(one.id) && !alive.has(one.widget ?? "")) one.set(one.lost, {});
      }
    }, PATIENCE);
  }

  /** The kernel's widgets; a busy kernel answers when its cell has ended, and one that is gone has none. */
  private async widgets(): Promise<Set<string>> {
    const { sessionContext } = this.notebook;
    try {
      await sessionContext.ready;
      const reply = await sessionContext.session?.kernel?.requestCommInfo({ target_name: TARGET });
      return new Set(Object.keys(reply?.content.comms ?? {}));
    } catch {
      return new Set();
    }
  }

  private *marked(): Generator<Marked> {
    for (const { outputs } of this.notebook.model?.cells ?? []) {
      for (let place = 0; place < (outputs?.length ?? 0); place++) {
        const found = markedAt(outputs!, place);
        if (found !== null) yield found;
      }
    }
  }
}

function markedAt(outputs: OutputList, place: number): Marked | null {
  const { metadata, data } = outputs.get(place);
  const { display_id: id, lost } = (metadata[MARK] ?? {}) as { display_id?: unknown; lost?: unknown };
  if (typeof id !== "string" || typeof lost !== "object" || lost === null) return null;
  const { model_id } = (data[WIDGET] ?? {}) as { model_id?: string };
  const set = (data: Data, metadata: Data) =>
    outputs.set(place, { output_type: "display_data", data, metadata });
  return { id, lost: lost as Data, widget: model_id, set };
}
