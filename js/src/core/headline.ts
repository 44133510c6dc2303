/** The figures above the chart, and the slim bar of the device's capacity. */

import { Capacity } from "./capacity.ts";
import { make, setAttribute, setText } from "./dom.ts";
import { digits, formatBytes, percentOf, unitFor } from "./format.ts";
import { Notice, noteOf, warningsOf } from "./notice.ts";
import { reportingText, worstOf } from "./rankwords.ts";
import { labelOf, leading, type Readings } from "./readings.ts";
import { OVERVIEW } from "./series.ts";
import type { Store } from "./store.ts";

const NO_PEAK = { bytes: Number.NaN, certainty: "" };

class Figure {
  readonly element: HTMLElement;
  private readonly lead = make("span", "");
  private readonly value = make("span", "value");
  private readonly trail = make("span", "");

  constructor(name: string) {
    this.element = make("span", `figure ${name}`, {}, [this.lead, this.value, this.trail]);
  }

  update(lead: string, value: string, trail = ""): void {
    this.element.hidden = value === "";
    setText(this.lead, lead === "" ? "" : `${lead} `);
    setText(this.value, value);
    setText(this.trail, trail === "" ? "" : ` ${trail}`);
  }
}

export class Headline {
  readonly element: HTMLElement;
  private readonly now = make("span", "now");
  private readonly nowUnit = make("span", "now-unit");
  private readonly total = new Figure("total");
  private readonly peak = new Figure("peak");
  private readonly reserved = new Figure("reserved");
  private readonly used = new Figure("used");
  private readonly budget = new Figure("budget");
  /** Only for all ranks of a run. */
  private readonly median = new Figure("median");
  private readonly lowest = new Figure("lowest");
  private readonly reporting = new Figure("reporting");
  private readonly notice = new Notice("span");
  private readonly capacity = new Capacity();

  constructor() {
    const figured = [
      this.total,
      this.peak,
      this.median,
      this.lowest,
      this.reporting,
      this.budget,
      this.reserved,
      this.used,
    ];
    const rest = [...figured.map((figure) => figure.element), this.notice.element];
    const figures = make("div", "figures", {}, [
      make("span", "current", {}, [this.now, " ", this.nowUnit]),
      ...rest,
    ]);
    this.element = make("div", "head", {}, [figures, this.capacity.element]);
  }

  update(store: Store, readings: Readings, percent: boolean): void {
    const { held, reserved, deviceUsed, total, peak, device } = readings;
    const isPercent = percent && total > 0;
    const percentage = isPercent ? percentOf(total) : undefined;
    const show = (bytes: number) => formatBytes(bytes, percentage);
    const optional = (bytes: number) => (Number.isNaN(bytes) ? "" : show(bytes));
    const unit = percentage ?? unitFor(held);
    setText(this.now, Number.isNaN(held) ? "–" : digits(held / unit.divisor));
    setText(this.nowUnit, unit.name);
    setAttribute(this.now.parentElement!, "title", labelOf(store, device.key, leading(store, device)));
    const capacity = Number.isNaN(total) ? "" : formatBytes(total);
    this.total.update("of", capacity, device.shared ? "shared with the CPU" : "");
    const ranks = device.key === OVERVIEW ? store.ranks : null;
    const worst = peak && worstOf(ranks, peak.bytes);
    const { bytes, certainty } = worst ? { ...worst, bytes: worst.peak } : (peak ?? NO_PEAK);
    const bound = certainty === "at least" ? "≥ " : "";
    const who = worst ? `(rank ${worst.rank})` : "";
    const trail = [bound === "" ? certainty : "", who].filter(Boolean).join(" ");
    this.peak.update("peak", peak ? bound + show(bytes) : "", trail);
    this.median.update("median", ranks !== null && ranks.world > 2 ? optional(ranks.median) : "");
    this.lowest.update("lowest", ranks !== null && ranks.world > 1 ? optional(ranks.lowest) : "");
    this.reporting.update("", ranks === null ? "" : reportingText(ranks));
    this.reserved.update(labelOf(store, device.key, "reserved"), optional(reserved));
    const left = device.shared ? optional(total - deviceUsed) : "";
    const used = labelOf(store, device.key, "device_used");
    this.used.update(used, optional(deviceUsed), left && `(${left} free)`);
    const budgets = store.guides.filter((guide) => guide.kind === "budget" && guide.device === device.key);
    this.budget.update(
      "budget",
      budgets.length === 0 ? "" : show(Math.min(...budgets.map(({ last }) => last))),
    );
    // A finding takes the place of figures that the chart has, too, so that nothing moves.
    const warnings = warningsOf(store);
    const { lead } = store.status ?? {};
    this.notice.update(warnings.length === 0 && lead !== undefined ? [noteOf(lead)] : warnings);
    this.capacity.update(store, readings);
  }
}
