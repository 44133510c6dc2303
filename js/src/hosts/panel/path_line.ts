/** The open spans as one line; where it is too narrow the outer ones go. */

import { make, setAttribute, setText } from "../../core/dom.ts";
import { __ } from "./translate.ts";

const NOTHING = "nothing is being watched";

export class PathLine {
  readonly element = make("div", "path", { role: "img" });
  private shown = "";

  /** Null while nothing is known yet. */
  update(path: string[] | null): void {
    const parts = path === null ? [] : path.length === 0 ? [__(NOTHING)] : path;
    const text = parts.join(" › ");
    if (text === this.shown) return;
    this.shown = text;
    for (const name of ["title", "aria-label"]) setAttribute(this.element, name, text);
    this.element.classList.toggle("hfmem-path-empty", path?.length === 0);
    // From the inside out, as panel.css lays them.
    const words = [...parts].reverse();
    // Most often only the innermost changes its number: then no element comes or goes.
    while (this.element.childElementCount > words.length) this.element.lastElementChild!.remove();
    while (this.element.childElementCount < words.length) this.element.append(make("span", "path-part"));
    words.forEach((word, index) => {
      setText(this.element.children[index]!, word);
    });
  }
}
