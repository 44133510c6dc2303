// @vitest-environment jsdom
/** Whether a page is dark, by its own text. */

import { afterEach, expect, test, vi } from "vitest";
import { isOnDark } from "../src/core/theme.ts";

afterEach(() => {
  vi.restoreAllMocks();
});

test.each([
  ["rgb(31, 35, 40)", false],
  ["rgba(0, 0, 0, 0.87)", false],
  ["rgb(204, 204, 204)", true],
  ["rgba(255, 255, 255, 0.87)", true],
  ["color(srgb 0.1 0.1 0.1)", false],
  ["color(srgb 0.9 0.9 0.9 / 0.5)", true],
  ["oklch(0.21 0.03 264)", false],
  ["oklch(0.97 0 0)", true],
  ["lab(12.3 0 0)", false],
  ["lab(96.1 0 0)", true],
  ["", false],
])("text of %s", (color, isDark) => {
  vi.spyOn(globalThis, "getComputedStyle").mockReturnValue({ color } as CSSStyleDeclaration);
  expect(isOnDark(document.body)).toBe(isDark);
});
