import { describe, expect, test } from "vitest";
import { bars } from "../../tests/contract/rules.json";
import { contrast, laidOn, PEAK, SHARE, spanColor } from "../src/core/colors.ts";
import { SERIES } from "../src/core/series.ts";
import root from "../src/styles/root.css";

const PAGES = { light: ["#ffffff", "#000000"], dark: ["#212121", "#ffffff"] } as const;

describe("contrast", () => {
  test("of black on white is 21, and of a colour on itself 1", () => {
    expect(contrast("#000", "#ffffff")).toBeCloseTo(21);
    expect(contrast(PEAK, PEAK)).toBe(1);
  });

  test("no bar has a colour that is not in that table", () => {
    const known = bars.map(([, , , color]) => color);
    for (const kind of ["cell", "step", "evaluate", "predict", "save", "oom"])
      for (const lane of [0, 1, 2, 3]) expect(known).toContain(spanColor(kind, lane));
    expect(known).toContain(PEAK);
  });

  test.each(Object.entries(PAGES))(
    "memory of no known purpose is of two lightnesses on a %s page",
    (_, [page]) => {
      const [before, rest] = [SERIES.before, SERIES.unattributed].map(({ color }) =>
        laidOn(page, color, SHARE),
      );
      expect(contrast(before!, rest!)).toBeGreaterThanOrEqual(1.6);
    },
  );

  test.each(Object.entries(PAGES))("a warning reads well on a %s page", (_, [page, text]) => {
    const [, color, percent] = /--hfmem-warning: color-mix\(in srgb, (#\w+) (\d+)%/.exec(root) ?? [];
    // JupyterLab's text is so far from opaque.
    const ink = laidOn(page, text, 0.87);
    expect(contrast(laidOn(ink, color!, Number(percent) / 100), page)).toBeGreaterThanOrEqual(4.5);
  });
});
