/** One tab for each device, with a small bar that shows how full it is. */

import { make, setAttribute, setText } from "./dom.ts";
import type { Device } from "./protocol.ts";
import { OVERVIEW } from "./series.ts";

interface Tab {
  element: HTMLButtonElement;
  fill: HTMLElement;
}

/** "rank 7" for `rank:7`; another device keeps its key. */
function tabName(key: string): string {
  return key.replace(/^rank:(?=\d+$)/, "rank ");
}

export class Tabs {
  readonly element = make("div", "tabs", { role: "tablist", "aria-label": "devices" });
  private keys: string[] = [];
  private tabs: Tab[] = [];

  constructor(private readonly onPick: (key: string) => void) {
    this.element.addEventListener("keydown", (event) => this.move(event));
  }

  update(devices: Device[], selected: string, share: (device: Device) => number): void {
    if (devices.map(({ key }) => key).join("\n") !== this.keys.join("\n")) this.rebuild(devices);
    devices.forEach((device, index) => {
      const { element, fill } = this.tabs[index]!;
      const isSelected = device.key === selected;
      setAttribute(element, "aria-selected", String(isSelected));
      setAttribute(element, "tabindex", isSelected ? "0" : "-1");
      fill.style.width = `${Math.round(100 * Math.max(0, Math.min(1, share(device) || 0)))}%`;
    });
  }

  private rebuild(devices: Device[]): void {
    this.keys = devices.map(({ key }) => key);
    // Names take room, and more devices may come.
    this.element.classList.toggle("hfmem-many", this.keys.includes(OVERVIEW));
    this.tabs = devices.map((device) => {
      const label = make("span", "tab-label");
      setText(label, tabName(device.key));
      const fill = make("span", "tab-fill");
      const element = make("button", "tab", { type: "button", role: "tab", title: device.name }, [
        label,
        make("span", "tab-bar", {}, [fill]),
      ]);
      element.addEventListener("click", () => this.onPick(device.key));
      return { element, fill };
    });
    this.element.replaceChildren(...this.tabs.map(({ element }) => element));
  }

  /** The arrow keys of the ARIA tabs pattern. */
  private move(event: KeyboardEvent): void {
    const at = this.tabs.findIndex(({ element }) => element === event.target);
    const last = this.tabs.length - 1;
    const next = {
      ArrowRight: at === last ? 0 : at + 1,
      ArrowLeft: at === 0 ? last : at - 1,
      Home: 0,
      End: last,
    }[event.key];
    if (at < 0 || next === undefined) return;
    event.preventDefault();
    this.onPick(this.keys[next]!);
    this.tabs[next]!.element.focus();
  }
}
