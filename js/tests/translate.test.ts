// @vitest-environment jsdom
/** The panel's words in another language than English. */

import { afterEach, describe, expect, test } from "vitest";
import { CellTable } from "../src/hosts/panel/cell_table.ts";
import { Hint } from "../src/hosts/panel/hint.ts";
import { Note } from "../src/hosts/panel/note.ts";
import { PathLine } from "../src/hosts/panel/path_line.ts";
import { __, speakWith, withElements } from "../src/hosts/panel/translate.ts";

/** Knows every text, and says which it was asked for. */
const asked: [string, string][] = [];
const translator = {
  load: (domain: string) => ({
    __: (text: string, ...values: unknown[]) => {
      asked.push([domain, text]);
      return `«${text.replace(/%(\d)/g, (_, place) => String(values[Number(place) - 1]))}»`;
    },
  }),
};

afterEach(() => {
  asked.length = 0;
  speakWith(null);
});

describe("words", () => {
  test("are English without a translator, values in their places", () => {
    speakWith(null);
    expect(__("%2 of %1", "all", 3)).toBe("3 of all");
  });

  test("are asked for under the package's name", () => {
    speakWith(translator);
    expect(__("Memory")).toBe("«Memory»");
    expect(asked).toEqual([["hfmem_widget", "Memory"]]);
  });

  test("have elements where a language puts them", () => {
    const backwards = {
      load: () => ({ __: (_: string, one: unknown, two: unknown) => `${two} vor ${one}` }),
    };
    speakWith(backwards);
    const [a, b] = ["a", "b"].map((name) => document.createElement(name));
    expect(withElements("%1 before %2", a!, b!).filter((part) => part !== "")).toEqual([b, " vor ", a]);
  });
});

test("everything that the panel says by itself is translated", () => {
  speakWith(translator);
  const path = new PathLine();
  path.update([]);
  const note = new Note({ getItem: () => null, setItem: () => {} } as unknown as Storage);
  note.show(() => {});
  const hint = new Hint();
  hint.greet(() => true, null);
  hint.update(true);
  const { element: table } = new CellTable();
  const [words, first] = hint.element.children;
  const parts = [path.element, ...table.querySelectorAll("th"), ...note.element.children];
  parts.push(words!, ...first!.children);

  expect(parts.map((part) => part.textContent!.trim()).filter((text) => !/^«.*»$/s.test(text))).toEqual([]);
});
