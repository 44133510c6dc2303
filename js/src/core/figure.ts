/** A scene as Plotly's traces and layout. Every text from outside goes through `forPlotly`. */

import { areaTraces } from "./areas.ts";
import { clockTicks, timeTicks } from "./axis.ts";
import type { Bar } from "./bar.ts";
import { inkOn, ON_PEAK, PEAK, spanColor } from "./colors.ts";
import { forPlotly } from "./format.ts";
import { guideShapes, guideTraces } from "./guidetraces.ts";
import type { Figure } from "./plotly.ts";
import { LABEL_PIXELS, LANE_PIXELS, type Scene, WORD_PIXELS, type Word } from "./scene.ts";
import { axis, boxed, sheet, tickText, withUnit } from "./sheet.ts";
import type { Theme } from "./theme.ts";

const TICK_PIXELS = 84;

export type TextWidth = (text: string, pixels: number) => number;

export function toFigure(scene: Scene, theme: Theme, revision: number, textWidth: TextWidth): Figure {
  const count = Math.max(2, scene.width / TICK_PIXELS);
  const { fold, startedAt } = scene;
  const times =
    fold === null
      ? timeTicks(scene.range, count)
      : clockTicks(scene.range, count, (drawn) => startedAt + fold.toTime(drawn));
  const plotShare = 1 - scene.lanesHeight / scene.height;
  return {
    data: [
      ...areaTraces(scene, theme),
      ...guideTraces(scene, theme),
      gapTrace(scene, theme),
      peakTrace(scene),
      laneTrace(scene, textWidth),
    ],
    layout: {
      ...sheet(scene, theme, revision),
      dragmode: "zoom",
      barmode: "overlay",
      uirevision: "time",
      selectdirection: "h",
      xaxis: { ...axis(theme), ...tickText(times), range: [...scene.range], showgrid: false, anchor: "y" },
      yaxis: {
        ...axis(theme),
        ...tickText(withUnit(scene.ticks, scene.unit.name)),
        range: [0, scene.top / scene.unit.divisor],
        domain: [0, plotShare],
        fixedrange: true,
      },
      yaxis2: {
        range: [scene.lanesHeight / LANE_PIXELS - 0.5, -0.5],
        domain: [Math.min(plotShare, 0.999), 1],
        fixedrange: true,
        visible: false,
      },
      shapes: [...capacityLine(scene, theme), ...guideShapes(scene)],
      annotations: [...scene.words.map((word) => wordLabel(word, scene, theme)), ...peakLabel(scene, theme)],
    },
  };
}

function gapTrace(scene: Scene, theme: Theme): object {
  return {
    type: "bar",
    uid: "gaps",
    x: scene.gaps.map((gap) => (gap.start + gap.stop) / 2),
    width: scene.gaps.map((gap) => gap.stop - gap.start),
    y: scene.gaps.map(() => scene.top / scene.unit.divisor),
    hoverinfo: "skip",
    marker: {
      color: "rgba(0,0,0,0)",
      line: { width: 0 },
      pattern: {
        shape: "/",
        size: 6,
        solidity: 0.18,
        fgcolor: theme.muted,
        fgopacity: 0.45,
        bgcolor: "rgba(0,0,0,0)",
      },
    },
  };
}

/** The point, and a thin line up to its label. Plotly would measure an annotation's own arrow at every draw. */
function peakTrace(scene: Scene): object {
  const { peak, unit, height, lanesHeight } = scene;
  const labelFoot = peak ? (1 - (peak.box.top + peak.box.height) / (height - lanesHeight)) * scene.top : 0;
  const foot = Math.max(labelFoot, peak?.bytes ?? 0);
  return {
    type: "scatter",
    mode: "lines+markers",
    uid: "peak",
    x: peak ? [peak.time, peak.time] : [],
    y: peak ? [peak.bytes / unit.divisor, foot / unit.divisor] : [],
    hoverinfo: "skip",
    cliponaxis: false,
    line: { color: PEAK, width: 1 },
    marker: { color: PEAK, size: [7, 0], opacity: 1, line: { width: 0 } },
  };
}

function laneTrace(scene: Scene, textWidth: TextWidth): object {
  const perPixel = (scene.range[1] - scene.range[0]) / scene.width;
  const bars = scene.bars.map((bar) => {
    const start = Math.max(bar.start, scene.range[0]);
    const stop = Math.max(Math.min(bar.stop, scene.range[1]), start + 1.5 * perPixel);
    // Neighbouring bars have a narrow gap, if there is room.
    const seam = (stop - start) / perPixel > 4 ? perPixel : 0;
    const color = bar.worst ? PEAK : spanColor(bar.kind, bar.lane);
    return {
      lane: bar.lane,
      start,
      length: stop - start - seam,
      color,
      text: fit(bar, (stop - start) / perPixel, textWidth),
    };
  });
  return {
    type: "bar",
    uid: "lanes",
    orientation: "h",
    xaxis: "x",
    yaxis: "y2",
    base: bars.map((bar) => bar.start),
    x: bars.map((bar) => bar.length),
    y: bars.map((bar) => bar.lane),
    width: 0.84,
    text: bars.map((bar) => forPlotly(bar.text)),
    textposition: "inside",
    insidetextanchor: "start",
    textangle: 0,
    constraintext: "none",
    insidetextfont: { size: WORD_PIXELS, color: bars.map((bar) => inkOn(bar.color)) },
    hoverinfo: "skip",
    marker: { color: bars.map((bar) => bar.color), line: { width: 0 } },
  };
}

/** The label, shortened to the bar's width; nothing if there is no room for three letters. */
function fit(bar: Bar, pixels: number, textWidth: TextWidth): string {
  const room = pixels - 8;
  const { label } = bar;
  if (room < 14) return "";
  if (textWidth(label, WORD_PIXELS) <= room) return label;
  // A shortened label of a group would be "steps…" in every bar.
  if (bar.steps !== undefined) return "";
  let length = Math.floor((room / textWidth(label, WORD_PIXELS)) * label.length);
  while (length > 3 && textWidth(`${label.slice(0, length)}…`, WORD_PIXELS) > room) length -= 1;
  return length > 3 ? `${label.slice(0, length)}…` : "";
}

function capacityLine({ capacity, unit }: Scene, theme: Theme): object[] {
  if (capacity === null) return [];
  const y = capacity / unit.divisor;
  return [
    { type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { color: theme.muted, width: 1 } },
  ];
}

function wordLabel({ text, box, isAlarming }: Word, scene: Scene, theme: Theme): object {
  const color = isAlarming ? ON_PEAK : theme.muted;
  return {
    ...boxed(box, scene),
    text: forPlotly(text),
    // Data above the line may be behind the word.
    ...(isAlarming ? { bgcolor: PEAK, borderpad: 1 } : {}),
    font: { color, size: WORD_PIXELS },
  };
}

function peakLabel(scene: Scene, theme: Theme): object[] {
  if (scene.peak === null) return [];
  const { text, box } = scene.peak;
  const font = { color: theme.text, size: LABEL_PIXELS, weight: 600 };
  return [{ ...boxed(box, scene), text: forPlotly(text), font }];
}
