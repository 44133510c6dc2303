/** The tooltip at the pointer. */

import { make, setText } from "./dom.ts";
import { MARGIN } from "./scene.ts";

export interface TipText {
  title: string;
  /** A row with a colour is a part of the row before. */
  rows: [name: string, value: string, color?: string][];
}

interface Plot {
  width: number;
  height: number;
  lanesHeight: number;
}

/** A small box beside the pointer, and a thin line through it. */
export class Tip {
  readonly element = make("div", "tip", { role: "presentation", hidden: "" });
  readonly rule = make("div", "rule", { hidden: "" });

  show(text: TipText, x: number, y: number, plot: Plot, hasRule: boolean): void {
    const title = make("div", "tip-title");
    setText(title, text.title);
    const rows = text.rows.map(([name, value, color]) => tipRow(name, value, color));
    this.element.replaceChildren(title, ...rows);
    this.element.hidden = false;
    const isRight = x > plot.width / 2;
    this.element.style.left = isRight ? "" : `${MARGIN.left + x + 12}px`;
    this.element.style.right = isRight ? `${MARGIN.right + plot.width - x + 12}px` : "";
    this.element.style.top = `${Math.max(0, Math.min(y + 10, plot.height - this.element.offsetHeight))}px`;
    this.rule.hidden = !hasRule;
    this.rule.style.left = `${MARGIN.left + x}px`;
    this.rule.style.top = `${MARGIN.top + plot.lanesHeight}px`;
    this.rule.style.height = `${plot.height - plot.lanesHeight}px`;
  }

  hide(): void {
    this.element.hidden = true;
    this.rule.hidden = true;
  }
}

function tipRow(name: string, value: string, color: string | undefined): HTMLElement {
  if (color === undefined) return make("div", "tip-row", {}, [make("span", "", {}, [name]), value]);
  const swatch = make("span", "swatch");
  swatch.style.background = color;
  return make("div", "tip-row", {}, [make("span", "tip-part", {}, [swatch, name]), value]);
}
