/** The notebook's memory in the status bar. */

import { button, setAttribute, setText } from "../../core/dom.ts";
import { formatClock } from "../../core/format.ts";
import { Beat } from "./beat.ts";
import { fullnessOf } from "./fullness.ts";
import type { Entry, Notebooks } from "./notebooks.ts";
import { __ } from "./translate.ts";

const BEAT = 500;

export class StatusItem {
  readonly element: HTMLButtonElement;
  isActive = false;

  private readonly unsubscribe: () => void;
  private front: Entry | null = null;
  private readonly beat = new Beat(() => this.update(), BEAT);

  /** `onActive` is called when it appears or goes. */
  constructor(
    private readonly notebooks: Notebooks,
    onClick: () => void,
    private readonly onActive: () => void,
  ) {
    this.element = button("status", "", onClick);
    this.unsubscribe = notebooks.subscribe(() => this.follow());
  }

  dispose(): void {
    this.unsubscribe();
    this.beat.stop();
  }

  /** Another notebook's figures must not stand beside this one. */
  private follow(): void {
    if (this.notebooks.front === this.front) this.beat.ask();
    else this.beat.now();
  }

  private update(): void {
    this.front = this.notebooks.front;
    const runs = this.front?.runs;
    const store = runs?.isLost ? null : (runs?.current ?? null);
    const fullness = store === null ? null : fullnessOf(store);
    if (this.isActive !== (fullness !== null)) {
      this.isActive = fullness !== null;
      this.onActive();
    }
    if (store === null || fullness === null) return;
    setText(this.element, fullness.text);
    setAttribute(this.element, "data-hfmem-level", fullness.level);
    const { schema, status } = store;
    const isOver = status?.state !== "running";
    const end = 1000 * ((schema?.started_at ?? 0) + (status?.elapsed ?? 0));
    const when = isOver ? `${__("As of %1, when the watch ended:", formatClock(end))} ` : "";
    const title = `${when}${fullness.title}. ${__("Click to show the memory panel.")}`;
    setAttribute(this.element, "title", title);
    setAttribute(this.element, "aria-label", `${fullness.text}. ${title}`);
  }
}
