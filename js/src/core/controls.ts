/** The browser's own controls: window, unit, pause. None of them needs Python. */

import { button, make, setAttribute, setText } from "./dom.ts";
import type { Settings } from "./settings.ts";

const WINDOWS: { seconds: number | null; text: string; title: string }[] = [
  { seconds: null, text: "all", title: "show the whole run" },
  { seconds: 30, text: "30 s", title: "show the last 30 seconds" },
  { seconds: 60, text: "60 s", title: "show the last 60 seconds" },
  { seconds: 300, text: "5 min", title: "show the last 5 minutes" },
];

export class Controls {
  readonly element = make("div", "controls", { role: "toolbar", "aria-label": "chart" });
  private readonly windows: HTMLButtonElement[];
  private readonly percent: HTMLButtonElement;
  private readonly pause: HTMLButtonElement;

  constructor(
    private readonly settings: Settings,
    private readonly onChange: () => void,
  ) {
    this.windows = WINDOWS.map(({ text, title }, index) => {
      const node = button("choice", title, () => this.pickWindow(index));
      setText(node, text);
      return node;
    });
    this.percent = button("choice unit", "show percent of capacity", () =>
      this.change({ percent: !settings.percent }),
    );
    this.pause = button("choice pause", "pause the drawing", () => this.change({ paused: !settings.paused }));
    this.pause.append(make("span", "pause-icon"));
    this.element.append(make("span", "group", {}, this.windows), this.percent, this.pause);
  }

  /** Windows are stretches of time: where something else is drawn there are none. */
  update(hasTotal: boolean, isOverTime: boolean): void {
    const { settings } = this;
    WINDOWS.forEach(({ seconds }, index) => {
      this.windows[index]!.disabled = !isOverTime;
      const isOn = isOverTime && settings.zoom === null && settings.window === seconds;
      setAttribute(this.windows[index]!, "aria-pressed", String(isOn));
      // Narrow pages show one of them: the one that was chosen, also while zoomed in.
      this.windows[index]!.classList.toggle("hfmem-chosen", settings.window === seconds);
    });
    this.percent.disabled = !hasTotal;
    setText(this.percent, settings.percent ? "%" : "GiB");
    name(this.percent, settings.percent ? "show GiB and MiB" : "show percent of capacity");
    setAttribute(this.pause, "aria-pressed", String(settings.paused));
    name(this.pause, settings.paused ? "go on drawing" : "pause the drawing; data still arrive");
  }

  /** Picking what is already picked moves on to the next: with one button showing, it reaches all. */
  private pickWindow(index: number): void {
    const isPicked = this.settings.zoom === null && WINDOWS[index]!.seconds === this.settings.window;
    const next = WINDOWS[isPicked && this.showsOne() ? (index + 1) % WINDOWS.length : index]!;
    this.change({ window: next.seconds, zoom: null });
    this.windows[WINDOWS.indexOf(next)]!.focus({ preventScroll: true });
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
