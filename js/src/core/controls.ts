/** The chart's own controls: window, unit, pause. None of them needs Python. */

import { button, make, setAttribute } from "./dom.ts";
import type { Settings } from "./settings.ts";

const WINDOWS: { seconds: number | null; text: string; title: string }[] = [
  { seconds: null, text: "all", title: "show the whole run" },
  { seconds: 30, text: "30 s", title: "show the last 30 seconds" },
  { seconds: 60, text: "60 s", title: "show the last 60 seconds" },
  { seconds: 300, text: "5 min", title: "show the last 5 minutes" },
];

/** The available choices; a choice that would make no difference is not offered. */
export interface Offer {
  /** The run's duration so far, in seconds. */
  elapsed: number;
  /** False if the horizontal axis is not time; then there are no windows. */
  isOverTime: boolean;
  hasPercent: boolean;
}

export class Controls {
  readonly element = make("div", "controls", { role: "toolbar", "aria-label": "chart" });
  private readonly windows: HTMLButtonElement[];
  private readonly unzoom: HTMLButtonElement;
  private readonly units: HTMLElement;
  private readonly bytes: HTMLButtonElement;
  private readonly percent: HTMLButtonElement;
  private readonly pause: HTMLButtonElement;

  constructor(
    private readonly settings: Settings,
    private readonly onChange: () => void,
  ) {
    this.windows = WINDOWS.map(({ text, title }, index) =>
      button("choice", title, () => this.pickWindow(index), text),
    );
    const unzoom = "reset the zoom (Escape, or double-click the chart)";
    this.unzoom = button("choice unzoom", unzoom, () => this.resetZoom(), "reset zoom");
    const unit = (text: string, title: string, percent: boolean) =>
      button("choice unit", title, () => this.change({ percent }), text);
    this.bytes = unit("GiB", "show GiB and MiB", false);
    this.percent = unit("%", "show percent of capacity", true);
    this.units = make("span", "units", {}, [this.bytes, this.percent]);
    this.pause = button("choice pause", "pause", () => this.change({ paused: !settings.paused }));
    this.pause.append(make("span", "pause-icon"));
    const windows = make("span", "group", {}, [this.unzoom, ...this.windows]);
    this.element.append(windows, this.units, this.pause);
  }

  update({ elapsed, isOverTime, hasPercent }: Offer): void {
    const { settings, windows } = this;
    const isZoomed = isOverTime && settings.zoom !== null;
    const isOffered = WINDOWS.map(
      ({ seconds }) => seconds === null || elapsed > seconds || settings.window === seconds,
    );
    const isChoice = isOverTime && isOffered.filter(Boolean).length > 1;
    WINDOWS.forEach(({ seconds }, index) => {
      windows[index]!.hidden = !isChoice || !isOffered[index];
      const isOn = !isZoomed && settings.window === seconds;
      setAttribute(windows[index]!, "aria-pressed", String(isOn));
      // A narrow page shows only the chosen one.
      windows[index]!.classList.toggle("hfmem-chosen", isOn);
    });
    this.unzoom.hidden = !isZoomed;
    this.unzoom.classList.toggle("hfmem-chosen", isZoomed);
    this.units.hidden = !hasPercent;
    setAttribute(this.bytes, "aria-pressed", String(!settings.percent));
    setAttribute(this.percent, "aria-pressed", String(settings.percent));
    setAttribute(this.pause, "aria-pressed", String(settings.paused));
    name(this.pause, settings.paused ? "resume" : "pause (data keep arriving)");
  }

  /** A click on the chosen window picks the next one: where only one button is visible, it reaches all. */
  private pickWindow(index: number): void {
    const isPicked = this.settings.zoom === null && WINDOWS[index]!.seconds === this.settings.window;
    const offered = WINDOWS.filter((_, place) => !this.windows[place]!.hidden);
    const after = offered[(offered.indexOf(WINDOWS[index]!) + 1) % offered.length]!;
    const next = isPicked && this.showsOne() ? after : WINDOWS[index]!;
    this.change({ window: next.seconds, zoom: null });
    this.windows[WINDOWS.indexOf(next)]!.focus({ preventScroll: true });
  }

  /** Returns whether there was a zoom. The button disappears, and the focus moves to the current window. */
  resetZoom(): boolean {
    if (this.settings.zoom === null) return false;
    this.change({ zoom: null });
    const isOn = (node: HTMLElement) => !node.hidden && node.getAttribute("aria-pressed") === "true";
    (this.windows.find(isOn) ?? this.pause).focus({ preventScroll: true });
    return true;
  }

  private showsOne(): boolean {
    return this.windows.filter((node) => getComputedStyle(node).display !== "none").length === 1;
  }

  private change(change: Partial<Settings>): void {
    Object.assign(this.settings, change);
    this.onChange();
  }
}

function name(node: Element, text: string): void {
  setAttribute(node, "title", text);
  setAttribute(node, "aria-label", text);
}
