/** Adds `%%memwatch` above the code of a cell, and removes it. */

import type { Cell } from "./jupyterlab.ts";

const MAGIC = "%%memwatch";
/** IPython skips empty lines before a cell's magic. */
const FIRST_LINE = /^\s*%%memwatch(?![^\s])[^\n]*\n?/;

/** Whether a cell may be changed: it has code and is not locked. */
export function takesMagic(cell: Cell | null | undefined): cell is Cell {
  return cell?.model.type === "code" && !cell.readOnly;
}

export function startsWithMagic(cell: Cell): boolean {
  return cell.model.type === "code" && FIRST_LINE.test(cell.model.sharedModel.getSource());
}

/** Adds the magic above the code, or removes it with its options; the cursor stays, and it can be undone. */
export function toggleMagic(cell: Cell): void {
  const text = cell.model.sharedModel;
  const there = FIRST_LINE.exec(text.getSource());
  if (there) text.updateSource(0, there[0].length, "");
  else text.updateSource(0, 0, `${MAGIC}\n`);
}
