import { describe, expect, test } from "vitest";
import { conditionOf } from "../src/core/condition.ts";
import { Store } from "../src/core/store.ts";
import { level, message, STATUS, span } from "./frames.ts";

const LATER = 40_000;

function told(...spans: ReturnType<typeof span>[]) {
  const store = new Store(() => 1);
  const status = spans.some(({ stop }) => stop === null) ? { ...STATUS, path: ["[3] x"] } : STATUS;
  store.apply(message("snapshot", 0, [level(0, 5)], { spans, status }));
  return conditionOf(store, LATER);
}

describe("a watch without a message for long", () => {
  const over = span(1, null, "cell", 0, 1);

  test("is silent while a cell runs", () => {
    const open = { ...over, id: 2, stop: null, outcome: "" };
    expect(told(over, open)).toMatchObject({ kind: "silent", text: expect.stringContaining("no update") });
  });

  test("is well between two cells", () => {
    expect(told(over)).toEqual({ kind: "running", text: "between cells" });
  });

  test("is silent where nothing is known of any cell", () => {
    expect(told().kind).toBe("silent");
  });
});
