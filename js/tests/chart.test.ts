// @vitest-environment jsdom
import { beforeEach, describe, expect, test, vi } from "vitest";
import { Chart } from "../src/core/chart.ts";
import { defaultSettings } from "../src/core/settings.ts";
import { Store } from "../src/core/store.ts";
import { level, message } from "./frames.ts";
import { paint, preparePage } from "./page.ts";

const plotly = vi.hoisted(() => ({ draw: vi.fn(async () => {}), purge: vi.fn() }));
vi.mock("../src/core/plotly.ts", () => plotly);

type Tell = (entries: { isIntersecting: boolean }[]) => void;

/** Stand in for an observer that tells what the test says, and count how often it was asked. */
function observer(name: string) {
  const observed = vi.fn();
  let tell: Tell = () => {};
  vi.stubGlobal(
    name,
    class {
      observe = observed;
      constructor(told: Tell) {
        tell = told;
      }
      unobserve(): void {}
      disconnect(): void {}
    },
  );
  return { observed, tell: (isIntersecting: boolean) => tell([{ isIntersecting }]) };
}

/** Draw a chart 800 pixels wide for the first time. */
function drawn() {
  const sizes = observer("ResizeObserver");
  const sight = observer("IntersectionObserver");
  const width = vi.spyOn(Element.prototype, "clientWidth", "get").mockReturnValue(800);
  const store = new Store(Date.now);
  const events = { onZoom: vi.fn(), onDraw: vi.fn(), onFault: vi.fn() };
  const chart = new Chart(store, defaultSettings(), events, new AbortController().signal);
  const draws = () => {
    vi.advanceTimersByTime(1000);
    paint();
    return plotly.draw.mock.calls.length;
  };
  store.apply(message("snapshot", 0, [level(0, 100), level(1, 200)]));
  chart.refresh();
  draws();
  return {
    chart,
    width,
    observed: sizes.observed,
    /** Tell the size that it has, and return how often it was drawn by then. */
    sized: () => {
      sizes.tell(true);
      return draws();
    },
    seen: (inSight: boolean) => {
      sight.tell(inSight);
      return draws();
    },
  };
}

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "Date", "performance"] });
  preparePage();
  plotly.draw.mockReset().mockResolvedValue(undefined);
});

describe("a chart", () => {
  test("is drawn once for each size, the first too", () => {
    const { width, sized } = drawn();
    expect([sized(), sized()]).toEqual([1, 1]);
    width.mockReturnValue(500);
    expect([sized(), sized()]).toEqual([2, 2]);
  });

  test("is not drawn without room, and again once there is as much as before", () => {
    const { width, sized, observed } = drawn();
    width.mockReturnValue(0);
    expect(sized()).toBe(1);
    width.mockReturnValue(800);
    expect(sized()).toBe(2);
    // Observed anew each time, or the size that is as before would not be told.
    expect(observed).toHaveBeenCalledTimes(1 + 3);
  });

  test("is drawn again for a scroll bar that came with the drawing", () => {
    const { width, sized } = drawn();
    width.mockReturnValue(600);
    plotly.draw.mockImplementationOnce(async () => {
      width.mockReturnValue(580);
    });
    expect([sized(), sized(), sized()]).toEqual([2, 3, 3]);
  });

  test("that is seen again is drawn if something came meanwhile", () => {
    const { chart, seen } = drawn();
    expect([seen(true), seen(false), seen(true), seen(false)]).toEqual([1, 1, 1, 1]);
    chart.refresh();
    expect([seen(false), seen(true), seen(true)]).toEqual([1, 2, 2]);
  });
});
