/** The meaning of each line and colour, with a switch for it. */

import { SHARE } from "./colors.ts";
import { button, make, setAttribute, setText } from "./dom.ts";
import { type PartName, STACK, shortName } from "./parts.ts";
import { BAND } from "./rankwords.ts";
import { labelOf } from "./readings.ts";
import { dashOf, LINES, type LineName, lookOf, OVERVIEW, overRanks, SERIES } from "./series.ts";
import { isHidden, type Settings, toggle } from "./settings.ts";
import type { Store } from "./store.ts";

/** The meaning of the points by tokens. */
const POINTS = [
  { name: "peak", text: "peak of a step" },
  { name: "after", text: "memory after the step" },
];

/** The state of the chart. */
export interface Shown {
  metrics: string[];
  parts: PartName[];
  /** Whether the device has known parts, shown or not. */
  knowsParts: boolean;
}

const DASHES: Record<string, string> = {
  dash: "6 4",
  dot: "2 3",
  dashdot: "6 3 2 3",
  longdash: "10 4",
  longdashdot: "10 3 2 3",
};
const SVG = "http://www.w3.org/2000/svg";

/** A piece of a line, or of the area beneath it. */
class Swatch {
  readonly element = make("span", "");
  private look = "";

  update(look: LineName): void {
    if (this.look === look) return;
    this.look = look;
    const { drawn, color } = SERIES[look];
    this.element.className = `hfmem-swatch hfmem-swatch-${drawn}`;
    this.element.style.color = color;
    this.element.replaceChildren(...(drawn === "line" ? [stroke(dashOf(look))] : []));
  }
}

function stroke(dash: string): SVGElement {
  const picture = document.createElementNS(SVG, "svg");
  const line = document.createElementNS(SVG, "path");
  for (const [name, value] of Object.entries({ width: "24", height: "10", "aria-hidden": "true" }))
    picture.setAttribute(name, value);
  for (const [name, value] of Object.entries({ d: "M0 5H24", stroke: "currentColor", "stroke-width": "2" }))
    line.setAttribute(name, value);
  line.setAttribute("stroke-dasharray", DASHES[dash] ?? "");
  picture.append(line);
  return picture;
}

export class Legend {
  readonly element = make("div", "legend", { role: "group", "aria-label": "series" });
  private readonly points = POINTS.map(({ name, text }) =>
    make("span", "legend-item", { hidden: "" }, [make("span", `swatch swatch-point-${name}`), text]),
  );
  private readonly items: { metric: LineName; node: HTMLButtonElement; label: HTMLElement; swatch: Swatch }[];
  private readonly parts: HTMLElement;
  private readonly choice = make("input", "hidden", { type: "checkbox" });
  private readonly names = STACK.map((name) => {
    const swatch = make("span", "swatch");
    swatch.style.background = SERIES[name].color;
    swatch.style.opacity = `${SHARE}`;
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
        toggle(settings, metric);
        onChange();
      });
      const label = make("span", "");
      const swatch = new Swatch();
      node.append(swatch.element, label);
      return { metric, node, label, swatch };
    });
    this.choice.addEventListener("change", () => {
      settings.parts = this.choice.checked;
      onChange();
    });
    // A button would keep these names on one line.
    const inside = [this.choice, this.word, ...this.names.map(({ node }) => node)];
    this.parts = make("label", "legend-parts", { hidden: "" }, inside);
    this.element.append(...this.items.map(({ node }) => node), this.parts, ...this.points);
  }

  /** `shown` is null before the first drawing; a line beyond the axis is only given as a figure. */
  update(store: Store, shown: Shown | null, isCloud: boolean): void {
    for (const point of this.points) point.hidden = !isCloud;
    const { device } = this.settings;
    const known = LINES.filter((metric) => store.columnOf(device, metric) >= 0);
    const drawable: readonly string[] = device === OVERVIEW ? overRanks(known) : known;
    for (const { metric, node, label, swatch } of this.items) {
      const look = lookOf(device, metric);
      swatch.update(look);
      const name = SERIES[look].drawn === "band" ? BAND : labelOf(store, device, metric);
      const isOff = isHidden(this.settings, metric);
      setText(label, name);
      node.hidden =
        isCloud || !drawable.includes(metric) || (!isOff && shown?.metrics.includes(metric) === false);
      setAttribute(node, "aria-pressed", String(!isOff));
      setAttribute(node, "title", isOff ? `show ${name}` : `hide ${name}`);
      setAttribute(node, "aria-label", name);
    }
    this.updateParts(shown, isCloud);
  }

  private updateParts(shown: Shown | null, isCloud: boolean): void {
    const { settings, parts, names, word, choice } = this;
    const drawn = shown?.parts ?? [];
    const isOffered = shown?.knowsParts === true && !settings.hidden.has("allocated");
    parts.hidden = isCloud || !isOffered;
    // A line that was just switched on is not drawn yet.
    word.hidden = settings.parts && drawn.length > 0;
    for (const { name, node } of names) node.hidden = !settings.parts || !drawn.includes(name);
    this.element.classList.toggle("hfmem-split", isOffered && settings.parts);
    choice.checked = settings.parts;
    setAttribute(parts, "title", settings.parts ? "hide the parts" : "show the parts");
    const labels = drawn.map((name) => SERIES[name].label).join(", ");
    setAttribute(choice, "aria-label", settings.parts ? `parts: ${labels}` : "parts");
  }
}
