/** A cloud as Plotly's traces and layout. */

import { type Cloud, type Point, toPixels } from "./cloud.ts";
import { ALLOCATED, OTHER, PEAK } from "./colors.ts";
import { forPlotly } from "./format.ts";
import { placeLabel } from "./place.ts";
import type { Figure } from "./plotly.ts";
import { LABEL_PIXELS } from "./scene.ts";
import { axis, boxed, sheet, tickText, withUnit } from "./sheet.ts";
import type { Theme } from "./theme.ts";

export function toCloudFigure(
  cloud: Cloud,
  theme: Theme,
  revision: number,
  textWidth: (text: string) => number,
): Figure {
  const { points, worst, unit } = cloud;
  const after = points.filter(({ memory }) => !Number.isNaN(memory.after));
  const dots = (uid: string, of: Point[], height: (point: Point) => number, marker: object): object => ({
    type: "scatter",
    mode: "markers",
    uid,
    x: of.map(({ tokens }) => tokens),
    y: of.map((point) => height(point) / unit.divisor),
    hoverinfo: "skip",
    cliponaxis: uid !== "worst",
    marker: { ...marker, line: { width: 0 } },
  });
  const peak = ({ memory }: Point) => memory.peak;
  return {
    data: [
      dots("after", after, ({ memory }) => memory.after, { color: OTHER, size: 4, opacity: 0.9 }),
      dots("peaks", points, peak, { color: ALLOCATED, size: 6, opacity: 0.8 }),
      dots("worst", worst ? [worst] : [], peak, { color: PEAK, size: 8, opacity: 1 }),
    ],
    layout: {
      ...sheet(cloud, theme, revision),
      dragmode: false,
      uirevision: "tokens",
      xaxis: {
        ...axis(theme),
        ...tickText(cloud.x.ticks),
        range: [...cloud.x.range],
        showgrid: false,
        fixedrange: true,
        anchor: "y",
      },
      yaxis: {
        ...axis(theme),
        ...tickText(withUnit(cloud.y.ticks, unit.name)),
        range: [...cloud.y.range],
        domain: [0, 1],
        fixedrange: true,
      },
      shapes: [],
      annotations: [...tokensWord(theme), ...worstLabel(cloud, theme, textWidth)],
    },
  };
}

/** The title of the horizontal axis, at its end, where nothing is drawn beneath. */
function tokensWord(theme: Theme): object[] {
  return [
    {
      text: "tokens of the step's largest batch",
      xref: "paper",
      x: 1,
      xanchor: "right",
      yref: "paper",
      y: 0,
      yanchor: "bottom",
      showarrow: false,
      borderpad: 2,
      font: { color: theme.muted, size: LABEL_PIXELS - 1 },
    },
  ];
}

/** The label is above its point and clear of the grid; in a narrow chart it is shorter. */
function worstLabel(cloud: Cloud, theme: Theme, textWidth: (text: string) => number): object[] {
  const { worst, width } = cloud;
  if (worst === null) return [];
  const [x, y] = toPixels(cloud, worst.tokens, worst.memory.peak);
  const text = textWidth(worst.text) + 6 <= width ? worst.text : worst.shortText;
  const size = { width: textWidth(text) + 6, height: LABEL_PIXELS + 3 };
  const lines = cloud.y.ticks.values.map((value) => toPixels(cloud, 0, value * cloud.unit.divisor)[1]);
  const onTop = { left: Math.max(0, Math.min(x - size.width / 2, width - size.width)), top: 0 };
  // The worst point is the highest of all, so nothing is in the way.
  const box = placeLabel({ x, y }, size, { width, lines, skyline: () => y }) ?? { ...onTop, ...size };
  const font = { color: theme.text, size: LABEL_PIXELS, weight: 600 };
  return [{ ...boxed(box, { range: cloud.x.range, width }), text: forPlotly(text), font }];
}
