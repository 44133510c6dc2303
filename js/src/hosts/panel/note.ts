/** A note in a panel that opened by itself, shown once: how to keep the panel closed. */

import { button, make, setText } from "../../core/dom.ts";
import { __, withElements } from "./translate.ts";

const KEY = "hfmem-widget/told-of-opening";

export class Note {
  readonly element = make("p", "panel-note", { role: "note" });

  constructor(private readonly storage: Storage) {
    this.element.hidden = true;
  }

  /** `turnOff` keeps the panel closed from now on; null if this page stores no settings. */
  show(turnOff: (() => void) | null): void {
    if (!this.isNew()) return;
    const turn = () => {
      turnOff?.();
      off.remove();
      const words =
        "The panel no longer opens automatically. Settings › Settings Editor › Memory turns this on again.";
      setText(text, `${__(words)} `);
    };
    const off = button("panel-off", __("Turn off automatic opening of this panel"), turn, __("Turn off"));
    const words =
      "This panel opens with the first watch of a notebook. %1, or Settings › Settings Editor › Memory, keeps it closed.";
    const text = make("span", "", {}, [...withElements(words, make("code", "", {}, ["--no-panel"])), " "]);
    const remove = () => this.element.remove();
    const dismiss = button("panel-dismiss", __("OK, do not show this again"), remove, __("OK"));
    this.element.replaceChildren(text, ...(turnOff ? [off, " "] : []), dismiss);
    this.element.hidden = false;
  }

  /** In a browser that stores nothing, the note appears on every page. */
  private isNew(): boolean {
    try {
      const isNew = this.storage.getItem(KEY) === null;
      this.storage.setItem(KEY, "1");
      return isNew;
    } catch {
      return true;
    }
  }
}
