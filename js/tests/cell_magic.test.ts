import { describe, expect, test } from "vitest";
import { takesMagic, toggleMagic } from "../src/hosts/panel/cell_magic.ts";

function cellOf(source: string, type = "code", readOnly = false) {
  let text = source;
  const sharedModel = {
    getSource: () => text,
    updateSource: (start: number, end: number, value: string) => {
      text = text.slice(0, start) + value + text.slice(end);
    },
  };
  return { readOnly, model: { type, sharedModel } };
}

describe("%%memwatch above a cell", () => {
  test.each([
    ["train()", "%%memwatch\ntrain()"],
    ["", "%%memwatch\n"],
    ["%%time\ntrain()", "%%memwatch\n%%time\ntrain()"],
    ["%%memwatcher\ntrain()", "%%memwatch\n%%memwatcher\ntrain()"],
    ["train()\n%%memwatch", "%%memwatch\ntrain()\n%%memwatch"],
    ["%%memwatch\ntrain()", "train()"],
    ["%%memwatch --label a --stacks\ntrain()\n", "train()\n"],
    ["\n\n%%memwatch\ntrain()", "train()"],
    ["%%memwatch", ""],
  ])("%j becomes %j", (before, after) => {
    const cell = cellOf(before);
    toggleMagic(cell);
    expect(cell.model.sharedModel.getSource()).toBe(after);
  });

  test("is for code that is not locked", () => {
    expect(takesMagic(cellOf("train()"))).toBe(true);
    expect(takesMagic(cellOf("train()", "markdown"))).toBe(false);
    expect(takesMagic(cellOf("train()", "code", true))).toBe(false);
    expect(takesMagic(null)).toBe(false);
  });
});
