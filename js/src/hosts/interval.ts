/**
 * The seconds between samples that a person has set in JupyterLab.
 *
 * The panel has no connection to the kernel, and is another bundle than the chart: it tells the page, and each run's
 * own widget tells the kernel.
 */

const KEY = Symbol.for("hfmem-widget/interval");
const page = globalThis as unknown as Record<symbol, number | undefined>;

export function wantInterval(seconds: number): void {
  page[KEY] = seconds;
}

/** Undefined if nobody has set one. */
export function wantedInterval(): number | undefined {
  return page[KEY];
}
