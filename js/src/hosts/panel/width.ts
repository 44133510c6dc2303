/** How wide the panel is: of what there is, the notebook comes first. */

import type { SplitPanel, Widget } from "./jupyterlab.ts";

/** What a notebook needs for its cells, cards and charts, in pixels. */
export const NOTEBOOK = 560;
export const NARROWEST = 320;
export const WIDEST = 400;
/** What a window always has beside it: JupyterLab's icons at both sides, and the edges. */
export const ICONS = 76;

/** Out of so many pixels for notebook and panel together: those of the panel, or null where both have no room. */
export function widthIn(pixels: number): number | null {
  const rest = Math.floor(pixels) - NOTEBOOK;
  return rest < NARROWEST ? null : Math.min(rest, WIDEST);
}

/**
 * Gives a panel in a side bar so many pixels, in exchange with the widest of its neighbours. JupyterLab has no option
 * for the width of a side bar, so it is asked of the split panel around all of them.
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

/** The split panel around a widget, and the place of that widget's side bar in it: a person may change the side. */
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
