/** How wide the panel is: of what there is, the notebook comes first. */

import type { SplitPanel, Widget } from "./jupyterlab.ts";

/** What a notebook needs for its cells, cards and charts, in pixels. */
export const NOTEBOOK = 700;
export const NARROWEST = 320;
export const WIDEST = 400;

/** Out of so many pixels for notebook and panel together: those of the panel, or null where both have no room. */
export function widthIn(pixels: number): number | null {
  const rest = Math.floor(pixels) - NOTEBOOK;
  return rest < NARROWEST ? null : Math.min(rest, WIDEST);
}

/**
 * Gives a panel at the right so many pixels, in exchange with the widest of its neighbours. JupyterLab has no option
 * for the width of a side bar, so it is asked of the split panel around all of them.
 */
export function resize(panel: Widget, pixels: number): void {
  const split = splitAround(panel);
  const width = split?.node.clientWidth ?? 0;
  if (!split || width === 0) return;
  const sizes = split.relativeSizes();
  const own = sizes.length - 1;
  const others = sizes.slice(0, own);
  const widest = others.indexOf(Math.max(...others));
  const more = pixels / width - sizes[own]!;
  if (widest < 0 || sizes[widest]! <= more) return;
  sizes[own]! += more;
  sizes[widest]! -= more;
  split.setRelativeSizes(sizes);
}

function splitAround(widget: Widget): SplitPanel | null {
  for (let around = widget.parent; around !== null; around = around.parent) {
    if ("setRelativeSizes" in around) return around as SplitPanel;
  }
  return null;
}
