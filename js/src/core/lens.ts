/** The horizontal axis: time, or the tokens of a step. */

import { button, make, setAttribute } from "./dom.ts";
import type { Settings } from "./settings.ts";

const LENSES = [
  { lens: "time", text: "over time", title: "draw memory over time" },
  { lens: "tokens", text: "by tokens", title: "draw the peak of each step by its tokens" },
] as const;

export class Lens {
  readonly element: HTMLElement;
  private readonly buttons: HTMLButtonElement[];

  constructor(
    private readonly settings: Settings,
    onChange: () => void,
  ) {
    this.buttons = LENSES.map(({ lens, text, title }) => {
      const pick = () => {
        settings.lens = lens;
        onChange();
        // A narrow page shows only the other one: the focus moves to a button that is visible.
        if (node.offsetParent === null) this.other(node).focus({ preventScroll: true });
      };
      const node = button("choice", title, pick, text);
      return node;
    });
    this.element = make("div", "lens", { role: "group", "aria-label": "horizontal axis" }, this.buttons);
  }

  private other(node: HTMLButtonElement): HTMLButtonElement {
    return this.buttons.find((each) => each !== node) ?? node;
  }

  /** Its place is kept when there is no choice, so that nothing moves. */
  update(isOffered: boolean): void {
    this.element.style.visibility = isOffered ? "" : "hidden";
    LENSES.forEach(({ lens }, index) => {
      const isOn = isOffered ? this.settings.lens === lens : lens === "time";
      setAttribute(this.buttons[index]!, "aria-pressed", String(isOn));
    });
  }
}
