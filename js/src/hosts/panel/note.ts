/** Says once, in a panel that opened by itself, how to have it stay closed. */

import { button, make, setText } from "../../core/dom.ts";

const KEY = "hfmem-widget/told-of-opening";
const WHERE = "Settings › Settings Editor › Memory";

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
      setText(text, `The panel no longer opens automatically. ${WHERE} turns this on again. `);
    };
    const off = button("panel-off", "Turn off automatic opening of this panel", turn, "Turn off");
    const text = make("span", "", {}, [
      "This panel opens with the first watch of a notebook. ",
      make("code", "", {}, ["--no-panel"]),
      `, or ${WHERE}, keeps it closed. `,
    ]);
    const dismiss = button("panel-dismiss", "OK, do not show this again", () => this.element.remove(), "OK");
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
