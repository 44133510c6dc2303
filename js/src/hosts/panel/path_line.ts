/** The open spans on one line, which loses the outer ones if it is too narrow. */

import { make, setAttribute, setText } from "../../core/dom.ts";
import { __ } from "./translate.ts";

const NOTHING = "nothing is being watched";

export class PathLine {
  readonly element = make("div", "path", { role: "img" });
  private shown = "";

  /** Null before the first data. */
  update(path: string[] | null): void {
    const parts = path === null ? [] : path.length === 0 ? [__(NOTHING)] : path;
    const text = parts.join(" › ");
    if (text === this.shown) return;
    this.shown = text;
    for (const name of ["title", "aria-label"]) setAttribute(this.element, name, text);
    this.element.classList.toggle("hfmem-path-empty", path?.length === 0);
    // From the innermost to the outermost, the order of panel.css.
    const words = [...parts].reverse();
    // Mostly only the innermost changes its number, and no element is added or removed.
    while (this.element.childElementCount > words.length) this.element.lastElementChild!.remove();
    while (this.element.childElementCount < words.length) this.element.append(make("span", "path-part"));
    words.forEach((word, index) => {
      setText(this.element.children[index]!, word);
    });
  }
}
