/** The common layout of all Plotly figures: size, colours, quiet axes. */

import type { Ticks } from "./axis.ts";
import type { Box } from "./place.ts";
import { LABEL_PIXELS, MARGIN, type Scene } from "./scene.ts";
import type { Theme } from "./theme.ts";

export function sheet(size: { width: number; height: number }, theme: Theme, revision: number): object {
  return {
    width: size.width + MARGIN.left + MARGIN.right,
    height: size.height + MARGIN.top + MARGIN.bottom,
    margin: { l: MARGIN.left, r: MARGIN.right, t: MARGIN.top, b: MARGIN.bottom, pad: 0 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: theme.font, size: LABEL_PIXELS, color: theme.muted },
    showlegend: false,
    hovermode: false,
    datarevision: revision,
  };
}

export function axis(theme: Theme): object {
  return {
    type: "linear",
    autorange: false,
    zeroline: false,
    showline: false,
    ticks: "outside",
    ticklen: 4,
    tickcolor: "rgba(0,0,0,0)",
    gridcolor: theme.line,
    gridwidth: 1,
    automargin: false,
    tickangle: 0,
  };
}

export function tickText(ticks: Ticks): object {
  return { tickmode: "array", tickvals: ticks.values, ticktext: ticks.texts };
}

/** The unit stands only at the highest tick. */
export function withUnit(ticks: Ticks, unit: string): Ticks {
  return {
    ...ticks,
    texts: ticks.texts.map((text, i) => (i === ticks.texts.length - 1 ? `${text} ${unit}` : text)),
  };
}

/** An annotation in the middle of a box of pixels. */
export function boxed(
  { left, top, width: boxWidth, height }: Box,
  { range, width }: Pick<Scene, "range" | "width">,
): object {
  const pixelsToTime = (range[1] - range[0]) / width;
  return {
    x: range[0] + (left + boxWidth / 2) * pixelsToTime,
    xanchor: "center",
    yref: "y domain",
    y: 1,
    yshift: -(top + height / 2),
    yanchor: "middle",
    showarrow: false,
    borderpad: 0,
  };
}
