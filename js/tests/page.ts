/** What jsdom lacks, counted, so that a test can see that nothing is left behind. */

import { vi } from "vitest";

export const active = new Set<object>();

class FakeObserver {
  observe(): void {
    active.add(this);
  }
  unobserve(): void {}
  disconnect(): void {
    active.delete(this);
  }
}

export const frames: FrameRequestCallback[] = [];

export function preparePage(): void {
  active.clear();
  frames.length = 0;
  document.body.replaceChildren();
  vi.stubGlobal("ResizeObserver", FakeObserver);
  vi.stubGlobal("IntersectionObserver", FakeObserver);
  vi.stubGlobal("MutationObserver", FakeObserver);
  vi.stubGlobal("requestAnimationFrame", (run: FrameRequestCallback) => frames.push(run));
  vi.stubGlobal("cancelAnimationFrame", () => frames.splice(0));
  vi.spyOn(Element.prototype, "clientWidth", "get").mockReturnValue(800);
  vi.spyOn(Element.prototype, "clientHeight", "get").mockReturnValue(206);
  // jsdom says so on its virtual console whenever a canvas is asked for.
  vi.spyOn(HTMLCanvasElement.prototype, "getContext").mockReturnValue(null);
}

export function paint(): void {
  for (const frame of frames.splice(0)) frame(0);
}
