/**
 * Keeps the kernel's subshell for widgets, from when this package is first named in a cell.
 *
 * JupyterLab has a subshell made with the first widget and deleted with the last, and takes the kernel's "idle" after
 * that request for its state: then the indicator says "Idle" for as long as the watched cell runs. A comm that is never
 * opened keeps the subshell, so it is made once, while the cell that loads the extension runs.
 */

import type { Kernel, KernelMessage, SessionContext } from "./jupyterlab.ts";

const TARGET = "jupyter.widget";
const PACKAGE = "hfmem_widget";

export class Subshell {
  private held: { kernel: Kernel; comm: { readonly isDisposed: boolean } } | null = null;

  constructor(private readonly sessionContext: SessionContext) {}

  /** Takes a message of the kernel's IOPub channel. */
  receive({ header, content }: KernelMessage): void {
    if (header.msg_type !== "execute_input") return;
    const { code } = (content ?? {}) as { code?: unknown };
    if (typeof code === "string" && code.includes(PACKAGE)) this.keep();
  }

  keep(): void {
    const kernel = this.sessionContext.session?.kernel;
    if (!kernel) return;
    if (kernel.commsOverSubshells !== "perCommTarget" || !kernel.supportsSubshells) return;
    if (this.held?.kernel === kernel && !this.held.comm.isDisposed) return;
    this.held = { kernel, comm: kernel.createComm(TARGET) };
  }
}
