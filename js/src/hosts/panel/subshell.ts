/**
 * Keeps the kernel's subshell for widgets alive from the first cell on that names this package.
 *
 * JupyterLab creates a subshell with the first widget and deletes it with the last, and takes the kernel's "idle"
 * after that request for its state: the indicator then says "Idle" while the watched cell runs. A comm that is never
 * opened keeps the subshell, which is then created only once, while the cell that loads the extension runs.
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
