/** Axes that fit the data and change seldom. */

import { formatClock, formatTick, grouped } from "./format.ts";

export interface Ticks {
  values: number[];
  texts: string[];
}

/** Steps of about an eighth: small enough to waste no height, large enough to keep an axis unchanged for a while. */
const MANTISSAS = [1, 1.1, 1.25, 1.4, 1.6, 1.8, 2, 2.25, 2.5, 2.8, 3.2, 3.6, 4, 4.5, 5, 5.6, 6.3, 7, 8, 9];
const SECONDS = [
  1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 21600, 43200,
];

/** The smallest round number that is at least `least`. */
export function niceTop(least: number): number {
  return least > 0 ? roundUp(least, MANTISSAS) : 1;
}

/** The smallest of some mantissas, times a power of ten, that is at least `least`. */
export function roundUp(least: number, mantissas: number[]): number {
  const power = 10 ** Math.floor(Math.log10(least));
  const fits = (mantissa: number) => mantissa * power >= least * (1 - 1e-9);
  return (mantissas.find(fits) ?? 10) * power;
}

/** The number of labels for a vertical axis of `pixels`: with the tops of `niceTop`, 4 to 6 at most. */
export function tickCount(pixels: number): number {
  return Math.min(Math.max(2, pixels / 26), 6);
}

/** About `count` ticks from 0 to `top`, at multiples of 1, 2, 2.5 or 5. */
export function valueTicks(top: number, count: number): Ticks {
  const step = roundUp(top / count, [1, 2, 2.5, 5]);
  const decimals = Math.max(0, Math.ceil(-Math.log10(step) - 1e-9) + (isQuarter(step) ? 1 : 0));
  const values = [];
  for (let index = 0; index * step <= top * (1 + 1e-9); index++) values.push(index * step);
  return { values, texts: values.map((value) => grouped(value.toFixed(decimals))) };
}

/** About `count` ticks within [start, stop], at multiples of 1, 2, 2.5 or 5. */
export function ticksWithin([start, stop]: readonly [number, number], count: number): Ticks {
  const { values, texts } = valueTicks(stop, (count * stop) / (stop - start));
  const from = values.findIndex((value) => value >= start * (1 - 1e-9));
  return { values: values.slice(from), texts: texts.slice(from) };
}

/**
 * A range for data from `low` to `high`. It begins at zero, unless the data are far above zero and close together.
 */
export function fittedRange(low: number, high: number): [number, number] {
  const top = niceTop(high * 1.06);
  if (!(low > 0.7 * high)) return [0, top];
  const step = niceTop((high - low) / 3 || high / 20);
  return [Math.max(0, Math.floor(low / step - 0.5) * step), Math.ceil(high / step + 0.5) * step];
}

/** Ticks at round times within [start, stop], at most `count` of them. */
export function timeTicks([start, stop]: readonly [number, number], count: number): Ticks {
  const step = timeStep((stop - start) / Math.max(1, count));
  const values = [];
  for (let index = Math.ceil(start / step - 1e-9); index * step <= stop + step * 1e-9; index++) {
    values.push(index * step);
  }
  return { values, texts: values.map((value) => formatTick(value, step, stop)) };
}

/** The ticks of `timeTicks` with the time of day, each second once; `clock` turns a tick's place into seconds. */
export function clockTicks(
  range: readonly [number, number],
  count: number,
  clock: (drawn: number) => number,
): Ticks {
  const { values } = timeTicks(range, count);
  const texts = values.map((value) => formatClock(1000 * clock(value)));
  return { values, texts: texts.map((text, index) => (text === texts[index - 1] ? "" : text)) };
}

/** The end of a growing axis, which moves in steps of about a twelfth of its length. */
export function growingEnd(elapsed: number): number {
  const step = timeStep(elapsed / 12);
  return Math.max(step, 0.001, Math.ceil(elapsed / step - 1e-6) * step);
}

function timeStep(least: number): number {
  if (least < 1) return roundUp(Math.max(least, 1e-6), [1, 2, 5]);
  return SECONDS.find((candidate) => candidate >= least) ?? Math.ceil(least / 86400) * 86400;
}

function isQuarter(step: number): boolean {
  return Math.abs(step / 10 ** Math.floor(Math.log10(step) + 1e-9) - 2.5) < 1e-6;
}
