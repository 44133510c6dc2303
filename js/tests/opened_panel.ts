/** The memory panel as JupyterLab opens it, on a page whose clock and sight a test moves. */

import { vi } from "vitest";
import { View } from "../src/core/view.ts";
import { Notebooks } from "../src/hosts/panel/notebooks.ts";
import { MemoryPanel } from "../src/hosts/panel/panel.ts";
import { paint, preparePage } from "./page.ts";
import { FakeTracker } from "./signals.ts";

const sights: ((entries: { isIntersecting: boolean }[]) => void)[] = [];

/** The panel comes into sight, or goes out of it. */
export function look(isIntersecting: boolean): void {
  for (const tell of sights) tell([{ isIntersecting }]);
}

/** Before each test; what it stubs is to be taken back after it. */
export function preparePanel(): void {
  vi.useFakeTimers({ toFake: ["setTimeout", "setInterval", "clearTimeout", "clearInterval", "Date"] });
  preparePage();
  sessionStorage.clear();
  localStorage.clear();
  sights.length = 0;
  const Observer = globalThis.IntersectionObserver as unknown as new () => object;
  class Sight extends Observer {
    constructor(tell: (entries: { isIntersecting: boolean }[]) => void) {
      super();
      sights.push(tell);
    }
  }
  vi.stubGlobal("IntersectionObserver", Sight);
}

export async function openPanel(load = async () => ({ View })) {
  const tracker = new FakeTracker();
  const notebooks = new Notebooks(tracker, sessionStorage);
  const panel = new MemoryPanel(notebooks, load, localStorage);
  document.body.append(panel.element);
  look(true);
  /** Lets what was asked for come, and a beat pass. */
  const settle = async () => {
    await Promise.resolve();
    await Promise.resolve();
    vi.advanceTimersByTime(600);
    paint();
  };
  const find = (name: string) => panel.element.querySelector<HTMLElement>(`.hfmem-${name}`);
  const labels = () =>
    [...panel.element.querySelectorAll(".hfmem-cell-label")].map((node) => node.textContent);
  /** The tab of the device that is shown. */
  const tab = () => panel.element.querySelector<HTMLElement>("[aria-selected=true]")!;
  return { tracker, notebooks, panel, settle, find, labels, tab };
}
