/**
 * Loads `hfmem_widget` in a kernel before the first cell that begins with `%%memwatch`, such as one from the toolbar's
 * button.
 */

import { startsWithMagic } from "./cell_magic.ts";
import type { Cell, Kernel, SessionContext } from "./jupyterlab.ts";
import type { Subshell } from "./subshell.ts";

/** Like `%load_ext`, but without its line of output if the extension was loaded before. */
const LOAD = 'get_ipython().extension_manager.load_extension("hfmem_widget")';

export class Loader {
  private loaded: Kernel | null = null;

  constructor(
    private readonly sessionContext: SessionContext,
    private readonly subshell: Subshell,
  ) {}

  /** A cell is about to run; a request that is sent now runs before it. */
  prepare(cell: Cell): void {
    const kernel = this.sessionContext.session?.kernel;
    if (!kernel || kernel === this.loaded || !startsWithMagic(cell)) return;
    this.loaded = kernel;
    this.subshell.keep();
    // If it cannot be loaded, the cell itself says what is missing.
    kernel.requestExecute({ code: LOAD, silent: true, store_history: false }).done.catch(() => {});
  }

  /** The kernel ended or restarted. */
  forget(): void {
    this.loaded = null;
  }
}
