/** Says once, in a panel that opened by itself, how to have it stay closed. */

import { button, make, setText } from "../../core/dom.ts";
import { __, withElements } from "./translate.ts";

const KEY = "hfmem-widget/told-of-opening";

export class Note {
  readonly element = make("p", "panel-note", { role: "note" });

  constructor(private readonly storage: Storage) {
    this.element.hidden = true;
  }

  /** `turnOff` has it stay closed from now on; null where this page keeps no settings. */
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

  /** A browser that keeps nothing is told with every page. */
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
