/** The width of a side bar. JupyterLab has no option for it, so it is asked of the split panel around all of them. */

import type { SplitPanel, Widget } from "./jupyterlab.ts";

/** A panel is given no more than this share of the window. */
const MOST = 0.33;

/** Gives a panel at the right so many pixels out of what the widest of its neighbours has, in a large window. */
export function widen(panel: Widget, pixels: number): void {
  const split = splitAround(panel);
  const width = split?.node.clientWidth ?? 0;
  if (!split || width === 0) return;
  const sizes = split.relativeSizes();
  const widest = sizes.indexOf(Math.max(...sizes));
  const own = sizes.length - 1;
  if (widest === own) return;
  const more = Math.min(pixels / width, MOST) - sizes[own]!;
  if (more <= 0) return;
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
