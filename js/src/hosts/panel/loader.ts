/** Has a kernel know `%%memwatch` before the first cell runs that begins with it, as the toolbar's button makes one. */

import { startsWithMagic } from "./cell_magic.ts";
import type { Cell, Kernel, SessionContext } from "./jupyterlab.ts";
import type { Subshell } from "./subshell.ts";

/** As `%load_ext` does, which prints a line where that was done before. */
const LOAD = 'get_ipython().extension_manager.load_extension("hfmem_widget")';

export class Loader {
  private loaded: Kernel | null = null;

  constructor(
    private readonly sessionContext: SessionContext,
    private readonly subshell: Subshell,
  ) {}

  /** A cell is about to be run: what is sent now comes before it. */
  prepare(cell: Cell): void {
    const kernel = this.sessionContext.session?.kernel;
    if (!kernel || kernel === this.loaded || !startsWithMagic(cell)) return;
    this.loaded = kernel;
    this.subshell.keep();
    // Where it cannot be loaded, the cell says what is missing.
    kernel.requestExecute({ code: LOAD, silent: true, store_history: false }).done.catch(() => {});
  }

  /** The kernel ended, or began anew. */
  forget(): void {
    this.loaded = null;
  }
}
