/**
 * Replaces the outputs of a watch when it ends, on a page that was reloaded since.
 *
 * JupyterLab knows an output's display id only on the page on which its cell was run, and a widget that its kernel has
 * closed is "model not found" for good. So the kernel writes the id into the metadata of such an output, with the
 * contents that it has if nothing replaces it (`MARK` in `view/screen.py`).
 *
 * If several people have the notebook open, only one page may replace it: if two do so at once, it appears twice.
 */

import type { CellOutputs, KernelMessage, NotebookPanel } from "./jupyterlab.ts";

const MARK = "hfmem-widget";
const WIDGET = "application/vnd.jupyter.widget-view+json";
const TARGET = "jupyter.widget";
/** The kernel's last message may come after its reply, on another channel. */
const PATIENCE = 1000;
/** The time in which another page's change of a shared notebook arrives here. */
const LAG = 5000;

type Data = Record<string, unknown>;

interface Marked {
  id: string;
  lost: Data;
  widget: string | undefined;
  set(data: Data, metadata: Data): void;
}

export class Outputs {
  /** The display ids of the outputs that an earlier page left. */
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
    this.replace(
      (one) => one.id === id,
      () => [data ?? {}, metadata ?? {}],
    );
  }

  /**
   * The kernel that would have replaced them is gone. A chart stays as long as the page has it, a card is replaced.
   */
  kernelEnded(): void {
    this.replace(({ widget }) => widget === undefined, lost);
  }

  private async begin(): Promise<void> {
    for (const { id } of this.marked()) this.left.add(id);
    if (this.left.size === 0) return;
    const alive = await this.widgets();
    setTimeout(() => {
      this.replace(({ id, widget }) => this.left.has(id) && !alive.has(widget ?? ""), lost);
    }, PATIENCE);
  }

  /**
   * At once if nobody else has the notebook open; otherwise after the page that ran the cell, each page in its turn.
   */
  private replace(
    isMeant: (one: Marked) => boolean,
    by: (one: Marked) => [data: Data, metadata: Data],
  ): void {
    // The ids are read now, since the same cell may begin again meanwhile.
    const ids = new Set([...this.marked()].filter(isMeant).map(({ id }) => id));
    const set = () => {
      for (const one of this.marked()) if (ids.has(one.id) && isMeant(one)) one.set(...by(one));
    };
    const { collaborative, sharedModel } = this.notebook.model ?? {};
    if (!collaborative) {
      set();
      return;
    }
    const pages = [...(sharedModel?.awareness?.getStates().keys() ?? [])].sort((a, b) => a - b);
    setTimeout(set, LAG * (1 + Math.max(0, pages.indexOf(sharedModel?.awareness?.clientID ?? 0))));
  }

  /** The kernel's widgets. A busy kernel answers when its cell has ended; one that is gone has none. */
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
    for (const cell of this.notebook.model?.cells ?? []) {
      for (let place = 0; place < (cell.outputs?.length ?? 0); place++) {
        const found = markedAt(cell, place);
        if (found !== null && isShared(cell, found.id)) yield found;
      }
    }
  }
}

function lost({ lost }: Marked): [Data, Data] {
  return [lost, {}];
}

/** An output that another page has replaced may still be in this page's list. */
function isShared({ sharedModel }: CellOutputs, id: string): boolean {
  const shared = sharedModel?.getOutputs?.();
  return shared === undefined || shared.some(({ metadata }) => markOf(metadata).display_id === id);
}

function markOf(metadata: unknown): { display_id?: unknown; lost?: unknown } {
  return (metadata as Record<string, object> | undefined)?.[MARK] ?? {};
}

function markedAt({ outputs }: CellOutputs, place: number): Marked | null {
  const { metadata, data } = outputs!.get(place);
  const { display_id: id, lost } = markOf(metadata);
  if (typeof id !== "string" || typeof lost !== "object" || lost === null) return null;
  const { model_id } = (data[WIDGET] ?? {}) as { model_id?: string };
  const set = (data: Data, metadata: Data) =>
    outputs!.set(place, { output_type: "display_data", data, metadata });
  return { id, lost: lost as Data, widget: model_id, set };
}
