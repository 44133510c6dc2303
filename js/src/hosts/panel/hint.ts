/** The text in the panel until the notebook in front is watched. */

import { button, make, setText } from "../../core/dom.ts";
import { ICON } from "./icon.ts";
import { __, withElements } from "./translate.ts";

export class Hint {
  readonly element = make("div", "panel-hint");

  private readonly words = make("p", "");
  /** For people who have never watched a cell. */
  private readonly first = make("p", "panel-first", { role: "note" });
  private isNotebook: boolean | null = null;
  private isOver = false;
  private isWanted = () => false;
  private forget: (() => void) | null = null;

  constructor() {
    this.first.hidden = true;
    this.element.append(this.words, this.first);
  }

  /** Explains the toolbar's button as long as `isWanted`; `forget` turns the hint off for good. */
  greet(isWanted: () => boolean, forget: (() => void) | null): void {
    this.isWanted = isWanted;
    this.forget = forget;
    const words = "The button %1 in the notebook’s toolbar puts it there for you.";
    const text = make("span", "", {}, withElements(words, picture()));
    const dismiss = button("panel-dismiss", __("OK, do not show this again"), () => this.end(), __("OK"));
    this.first.replaceChildren(text, " ", dismiss);
    if (this.isOver) this.rest();
    this.show();
  }

  update(isNotebook: boolean): void {
    if (isNotebook !== this.isNotebook) this.advise(isNotebook);
    this.isNotebook = isNotebook;
    this.show();
  }

  /** A first watch came, or a person has read the hint. */
  end(): void {
    if (this.isOver) return;
    this.isOver = true;
    this.rest();
    this.show();
  }

  private rest(): void {
    if (this.isWanted()) this.forget?.();
  }

  private show(): void {
    this.first.hidden = this.isOver || this.isNotebook !== true || !this.isWanted();
  }

  private advise(isNotebook: boolean): void {
    if (!isNotebook) {
      setText(this.words, __("Open a notebook to see its memory here."));
      return;
    }
    const code = (text: string) => make("code", "", {}, [text]);
    const words = "To see this notebook’s memory here, run %1 and put %2 at the top of a cell.";
    this.words.replaceChildren(...withElements(words, code("%load_ext hfmem_widget"), code("%%memwatch")));
  }
}

function picture(): Element {
  const svg = new DOMParser().parseFromString(ICON, "image/svg+xml").documentElement;
  svg.setAttribute("aria-hidden", "true");
  return svg;
}
