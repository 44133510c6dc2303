// @vitest-environment jsdom
import { expect, test } from "vitest";
import { Notebooks } from "../src/hosts/panel/notebooks.ts";
import { FakeTracker } from "./signals.ts";

const cellOf = (source: string, type = "code") => ({
  readOnly: false,
  model: { type, sharedModel: { getSource: () => source, updateSource: () => {} } },
});
const LOADED = {
  code: expect.stringContaining('load_extension("hfmem_widget")'),
  silent: true,
  store_history: false,
};

test("before the first cell with the magic runs, its kernel knows it: once, and again when it begins anew", () => {
  const tracker = new FakeTracker();
  const notebooks = new Notebooks(tracker, sessionStorage);
  const [a, b] = [tracker.open("a"), tracker.open("b")];
  const { sessionContext } = a;
  for (const other of [cellOf("train()"), cellOf("%%memwatch", "markdown"), cellOf("%%memwatcher")])
    notebooks.prepare(a, other);
  expect(sessionContext.executed).toEqual([]);
  for (let run = 0; run < 2; run++) notebooks.prepare(a, cellOf("%%memwatch --label x\ntrain()"));
  expect(sessionContext.executed).toEqual([LOADED]);
  expect(sessionContext.comms).toHaveLength(1);
  sessionContext.statusChanged.emit(sessionContext, "restarting");
  notebooks.prepare(a, cellOf("%%memwatch"));
  expect(sessionContext.executed).toHaveLength(2);
  sessionContext.changeKernel("another");
  notebooks.prepare(a, cellOf("%%memwatch"));
  expect(sessionContext.executed).toHaveLength(3);
  expect(b.sessionContext.executed).toEqual([]);
  notebooks.prepare(null, cellOf("%%memwatch"));
});
