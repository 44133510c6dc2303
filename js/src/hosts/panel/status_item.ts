/** The notebook's memory in the status bar. */

import { button, setAttribute, setText } from "../../core/dom.ts";
import { formatBytes, formatClock } from "../../core/format.ts";
import type { Device } from "../../core/protocol.ts";
import type { Store } from "../../core/store.ts";
import { Beat } from "./beat.ts";
import { cellsOf } from "./cells.ts";
import { fullnessOf } from "./fullness.ts";
import type { Entry, Notebooks } from "./notebooks.ts";
import { openPath } from "./path.ts";
import { __ } from "./translate.ts";

const BEAT = 500;
const MOST_LETTERS = 24;

export class StatusItem {
  readonly element: HTMLButtonElement;
  isActive = false;

  private readonly unsubscribe: () => void;
  private front: Entry | null = null;
  private readonly beat = new Beat(() => this.update(), BEAT);

  /** `onActive` is called when the item appears or disappears. */
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

  /** Another notebook's figures must not be shown with this one. */
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
    const text = [fullness.text, running(store, fullness.device)].filter(Boolean).join(" · ");
    setText(this.element, text);
    setAttribute(this.element, "data-hfmem-level", fullness.level);
    const { schema, status } = store;
    const isOver = status?.state !== "running";
    const end = 1000 * ((schema?.started_at ?? 0) + (status?.elapsed ?? 0));
    const when = isOver ? `${__("As of %1, when the watch ended:", formatClock(end))} ` : "";
    const title = `${when}${fullness.title}. ${__("Click to show the memory panel.")}`;
    setAttribute(this.element, "title", title);
    setAttribute(this.element, "aria-label", `${text}. ${title}`);
  }
}

/** The running cell and its peak, which are all that is visible if the panel has no room. */
function running(store: Store, device: Device): string {
  const [label = ""] = openPath(store);
  if (label === "") return "";
  const cells = cellsOf(store).filter(({ open }) => open);
  const peak = cells.at(-1)?.devices[device.key]?.peak ?? 0;
  const name = label.length > MOST_LETTERS ? `${label.slice(0, MOST_LETTERS - 1)}…` : label;
  return peak > 0 ? __("%1, peak %2", name, formatBytes(peak)) : name;
}
