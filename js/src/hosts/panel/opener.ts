/** Opens the panel with the first watch of each notebook, once in the life of the page. */

import type { Notebooks } from "./notebooks.ts";

export class Opener {
  private readonly opened = new WeakSet<object>();

  constructor(
    private readonly notebooks: Notebooks,
    private readonly open: () => void,
    /** Whether a person wants it, and it has room beside the notebook in front. */
    private readonly mayOpen: () => boolean,
  ) {
    notebooks.subscribe(() => this.follow());
    this.follow();
  }

  /** For a notebook in the background, the panel opens when the notebook comes to the front. */
  private follow(): void {
    const { front } = this.notebooks;
    if (!front?.runs.wantsPanel || this.opened.has(front)) return;
    this.opened.add(front);
    if (this.mayOpen()) this.open();
  }
}
