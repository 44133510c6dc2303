/** What each line means, and a switch for it. */

import { button, make, setAttribute, setText } from "./dom.ts";
import { labelOf } from "./readings.ts";
import type { Settings } from "./settings.ts";
import type { Store } from "./store.ts";

const METRICS = ["allocated", "reserved", "device_used"];
/** What the points by tokens mean. */
const POINTS = [
  { name: "peak", text: "peak of a step" },
  { name: "after", text: "after it" },
];

export class Legend {
  readonly element = make("div", "legend", { role: "group", "aria-label": "series" });
  private readonly points = POINTS.map(({ name, text }) =>
    make("span", "legend-item", { hidden: "" }, [make("span", `swatch swatch-point-${name}`), text]),
  );
  private readonly items: { metric: string; node: HTMLButtonElement; label: HTMLElement }[];

  constructor(
    private readonly settings: Settings,
    onChange: () => void,
  ) {
    this.items = METRICS.map((metric) => {
      const node = button("legend-item", "", () => {
        if (!settings.hidden.delete(metric)) settings.hidden.add(metric);
        onChange();
      });
      const label = make("span", "");
      node.append(make("span", `swatch swatch-${metric}`), label);
      return { metric, node, label };
    });
    this.element.append(...this.items.map(({ node }) => node), ...this.points);
  }

  /** `drawn` are the metrics that the chart shows, null before it drew; one too large for it is only a figure. */
  update(store: Store, drawn: string[] | null, isCloud: boolean): void {
    for (const point of this.points) point.hidden = !isCloud;
    for (const { metric, node, label } of this.items) {
      const name = labelOf(store, this.settings.device, metric);
      const isHidden = this.settings.hidden.has(metric);
      setText(label, name);
      node.hidden =
        isCloud ||
        store.columnOf(this.settings.device, metric) < 0 ||
        (!isHidden && drawn?.includes(metric) === false);
      setAttribute(node, "aria-pressed", String(!isHidden));
      setAttribute(node, "title", isHidden ? `show ${name}` : `hide ${name}`);
      setAttribute(node, "aria-label", name);
    }
  }
}
