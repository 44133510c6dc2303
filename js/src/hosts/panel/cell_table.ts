/** The last cells and their figures of one device, newest first. */

import { make, setAttribute, setText } from "../../core/dom.ts";
import { formatBytes, formatChange, formatDuration } from "../../core/format.ts";
import { Notice } from "../../core/notice.ts";
import { type CellFacts, changeOn, worstOn } from "./cells.ts";
import { __ } from "./translate.ts";

const HEADINGS = [
  ["cell", "watched cells and blocks, newest first"],
  ["time", "how long it ran"],
  ["left behind", "allocated memory at the end minus at the start"],
  ["peak", "highest allocated memory"],
] as const;

class Row {
  readonly element: HTMLTableRowElement;
  /** A row of its own beneath the cell's, if it has findings. */
  private readonly found: HTMLTableRowElement;
  private readonly notice = new Notice("div");
  private readonly label = make("span", "cell-label");
  private readonly outcome = make("span", "cell-outcome");
  private readonly took = make("td", "");
  private readonly change = make("td", "");
  private readonly mark = make("span", "cell-mark", { "aria-hidden": "true" }, ["●"]);
  private readonly peakText = make("span", "");
  private readonly peak = make("td", "", {}, [this.mark, this.peakText]);

  constructor() {
    const name = make("td", "cell-name", {}, [make("div", "cell-words", {}, [this.label, this.outcome])]);
    this.element = make("tr", "", {}, [name, this.took, this.change, this.peak]);
    this.found = make("tr", "cell-found", {}, [
      make("td", "", { colspan: `${HEADINGS.length}` }, [this.notice.element]),
    ]);
  }

  update(cell: CellFacts, device: string, isWorst: boolean): void {
    const { label, outcome, duration, open, findings } = cell;
    this.notice.update(findings);
    if (findings.length === 0) this.found.remove();
    else if (this.element.nextSibling !== this.found) this.element.after(this.found);
    const failure = outcome === "done" ? "" : outcome.replace(/^raised /, "");
    setText(this.label, label);
    setText(this.outcome, failure);
    setAttribute(this.element, "title", [label, outcome].filter(Boolean).join(" · "));
    this.element.classList.toggle("hfmem-cell-open", open);
    setText(this.took, formatDuration(duration));
    const change = changeOn(cell, device);
    setText(this.change, open ? __("running") : Number.isNaN(change) ? "–" : formatChange(change));
    const memory = cell.devices[device];
    const bound = memory?.certainty === "at least" ? "≥ " : "";
    setText(this.peakText, memory?.peak == null ? "–" : bound + formatBytes(memory.peak));
    this.mark.hidden = !isWorst;
    this.peak.classList.toggle("hfmem-cell-worst", isWorst);
    const words = [isWorst ? __("the highest of these") : "", memory?.peak == null ? "" : memory.certainty];
    setAttribute(this.peak, "title", words.filter(Boolean).join(", "));
  }

  remove(): void {
    this.element.remove();
    this.found.remove();
  }
}

export class CellTable {
  readonly element: HTMLTableElement;
  private readonly body = make("tbody", "");
  private readonly rows: Row[] = [];

  constructor() {
    const headings = HEADINGS.map(([text, title]) =>
      make("th", "", { scope: "col", title: __(title) }, [__(text)]),
    );
    const head = make("thead", "", {}, [make("tr", "", {}, headings)]);
    this.element = make("table", "cells", { "aria-label": __("recent cells") }, [head, this.body]);
  }

  update(cells: CellFacts[], device: string): void {
    this.element.hidden = cells.length === 0;
    while (this.rows.length < cells.length) this.rows.push(new Row());
    const worst = worstOn(cells, device);
    cells.forEach((cell, index) => {
      const row = this.rows[index]!;
      if (row.element.parentNode === null) this.body.append(row.element);
      row.update(cell, device, cell === worst);
    });
    for (const row of this.rows.slice(cells.length)) row.remove();
  }
}
