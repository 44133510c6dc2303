/** What each line and each colour means, and a switch for it. */

import { button, make, setAttribute, setText } from "./dom.ts";
import { type PartName, STACK, shortName } from "./parts.ts";
import { labelOf } from "./readings.ts";
import { LINES, SERIES } from "./series.ts";
import type { Settings } from "./settings.ts";
import type { Store } from "./store.ts";

/** What the points by tokens mean. */
const POINTS = [
  { name: "peak", text: "peak of a step" },
  { name: "after", text: "memory after the step" },
];

/** What the chart shows. */
export interface Shown {
  metrics: string[];
  parts: PartName[];
  /** Whether there are parts to show, shown or not. */
  knowsParts: boolean;
}

export class Legend {
  readonly element = make("div", "legend", { role: "group", "aria-label": "series" });
  private readonly points = POINTS.map(({ name, text }) =>
    make("span", "legend-item", { hidden: "" }, [make("span", `swatch swatch-point-${name}`), text]),
  );
  private readonly items: { metric: string; node: HTMLButtonElement; label: HTMLElement }[];
  private readonly parts: HTMLElement;
  private readonly choice = make("input", "hidden", { type: "checkbox" });
  private readonly names = STACK.map((name) => {
    const swatch = make("span", "swatch");
    swatch.style.background = SERIES[name].color;
    const node = make("span", "legend-part", {}, [swatch, shortName(name)]);
    return { name, node };
  });
  private readonly word = make("span", "legend-word", {}, ["parts"]);

  constructor(
    private readonly settings: Settings,
    onChange: () => void,
  ) {
    this.items = LINES.map((metric) => {
      const node = button("legend-item", "", () => {
        if (!settings.hidden.delete(metric)) settings.hidden.add(metric);
        onChange();
      });
      const label = make("span", "");
      const { drawn, color } = SERIES[metric];
      const swatch = make("span", `swatch swatch-${drawn}`);
      swatch.style.color = color;
      node.append(swatch, label);
      return { metric, node, label };
    });
    this.choice.addEventListener("change", () => {
      settings.parts = this.choice.checked;
      onChange();
    });
    // A button would keep its names in one line.
    const inside = [this.choice, this.word, ...this.names.map(({ node }) => node)];
    this.parts = make("label", "legend-parts", { hidden: "" }, inside);
    this.element.append(...this.items.map(({ node }) => node), this.parts, ...this.points);
  }

  /** `shown` is null before the chart drew; a line too large for it is only a figure. */
  update(store: Store, shown: Shown | null, isCloud: boolean): void {
    for (const point of this.points) point.hidden = !isCloud;
    for (const { metric, node, label } of this.items) {
      const name = labelOf(store, this.settings.device, metric);
      const isHidden = this.settings.hidden.has(metric);
      setText(label, name);
      node.hidden =
        isCloud ||
        store.columnOf(this.settings.device, metric) < 0 ||
        (!isHidden && shown?.metrics.includes(metric) === false);
      setAttribute(node, "aria-pressed", String(!isHidden));
      setAttribute(node, "title", isHidden ? `show ${name}` : `hide ${name}`);
      setAttribute(node, "aria-label", name);
    }
    this.updateParts(shown, isCloud);
  }

  private updateParts(shown: Shown | null, isCloud: boolean): void {
    const { settings, parts, names, word, choice } = this;
    const drawn = shown?.parts ?? [];
    const isOffered = shown?.knowsParts === true && !settings.hidden.has("allocated");
    parts.hidden = isCloud || !isOffered;
    // Just switched on, they are not drawn yet.
    word.hidden = settings.parts && drawn.length > 0;
    for (const { name, node } of names) node.hidden = !settings.parts || !drawn.includes(name);
    this.element.classList.toggle("hfmem-split", isOffered && settings.parts);
    choice.checked = settings.parts;
    setAttribute(parts, "title", settings.parts ? "hide the parts" : "show the parts");
    const told = drawn.map((name) => SERIES[name].label).join(", ");
    setAttribute(choice, "aria-label", settings.parts ? `parts: ${told}` : "parts");
  }
}
