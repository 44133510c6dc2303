/** The width of the panel; the notebook's needs come first. */

import type { SplitPanel, Widget } from "./jupyterlab.ts";

/** The least width of a notebook for its cells, cards and charts, in pixels. */
export const NOTEBOOK = 560;
export const NARROWEST = 320;
export const WIDEST = 400;
/** The width of the rest of a window, in pixels: JupyterLab's icons at both sides, and the edges. */
export const ICONS = 76;

/** The panel's share of `room` pixels for notebook and panel together, or null if there is too little for both. */
export function widthIn(pixels: number): number | null {
  const rest = Math.floor(pixels) - NOTEBOOK;
  return rest < NARROWEST ? null : Math.min(rest, WIDEST);
}

/**
 * Gives a panel in a side bar a width in pixels, and takes it from the widest of its neighbours. JupyterLab has no
 * option for the width of a side bar, so the split panel around all of them is resized.
 */
export function resize(panel: Widget, pixels: number): void {
  const [split, own] = splitAround(panel);
  const width = split?.node.clientWidth ?? 0;
  if (!split || width === 0 || own < 0) return;
  const sizes = split.relativeSizes();
  const others = sizes.map((size, place) => (place === own ? 0 : size));
  const widest = others.indexOf(Math.max(...others));
  const more = pixels / width - sizes[own]!;
  if (others[widest]! <= more) return;
  sizes[own]! += more;
  sizes[widest]! -= more;
  split.setRelativeSizes(sizes);
}

/** The split panel around a widget, and the index of its side bar, whose side a person may change. */
function splitAround(widget: Widget): [SplitPanel | null, number] {
  let child = widget;
  for (let around = widget.parent; around !== null; around = around.parent) {
    if ("setRelativeSizes" in around) {
      const split = around as SplitPanel;
      return [split, split.widgets.indexOf(child)];
    }
    child = around;
  }
  return [null, -1];
}
