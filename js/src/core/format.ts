/** Bytes, seconds and labels as text, by the rules of `text.py`. */

export const MIB = 2 ** 20;
const LARGER = ["GiB", "TiB", "PiB"];

export interface Unit {
  divisor: number;
  name: string;
}

export function percentOf(total: number): Unit {
  return { divisor: total / 100, name: "%" };
}

export function unitFor(bytes: number): Unit {
  let unit = { divisor: MIB, name: "MiB" };
  for (const name of LARGER) {
    if (Math.abs(bytes) < 999.5 * unit.divisor) return unit;
    unit = { divisor: 1024 * unit.divisor, name };
    if (!Number.isFinite(bytes)) return unit;
  }
  return unit;
}

/** Three significant digits, four above a hundred: 0.51, 6.99, 14.0, 140.4, 1,005. */
export function digits(value: number): string {
  const magnitude = Math.abs(value);
  const text = fixed(magnitude, magnitude >= 999.5 ? 0 : magnitude >= 9.995 ? 1 : 2);
  return value < 0 && Number(text) !== 0 ? `\u2212${grouped(text)}` : grouped(text);
}

/** A figure with commas between thousands. */
export function grouped(text: string): string {
  return text.replace(/\d+/, (whole) => whole.replace(/\B(?=(\d{3})+$)/g, ","));
}

/** Rounds a value halfway between two figures to the even one, as Python and torch do. */
function fixed(value: number, decimals: number): string {
  const text = value.toFixed(decimals);
  const isBetween = /^50*$/.test(value.toFixed(decimals + 30).slice(-30));
  return isBetween && /[13579]$/.test(text)
    ? (Number(text) - Math.sign(value) * 10 ** -decimals).toFixed(decimals)
    : text;
}

/** `unit` is given if all sizes are shown in one, such as percent. */
export function formatBytes(bytes: number, unit = unitFor(bytes)): string {
  if (!Number.isFinite(bytes)) return "n/a";
  return `${digits(bytes / unit.divisor)} ${unit.name}`;
}

/** A count, such as 1,024. */
export function formatCount(count: number): string {
  if (!Number.isFinite(count)) return "n/a";
  return grouped(String(Number(fixed(count, 0))));
}

/** A count with its noun: `1 step`, `6,000 steps`. */
export function formatCounted(count: number, noun: string): string {
  return `${formatCount(count)} ${noun}${count === 1 ? "" : "s"}`;
}

export function formatChange(bytes: number): string {
  if (!Number.isFinite(bytes)) return "n/a";
  const text = formatBytes(bytes);
  if (Number.parseFloat(text) === 0) return "±0";
  return bytes < 0 ? text : `+${text}`;
}

/** A share of a whole: `62 %`, `4.2 %`, `<0.1 %`. */
export function formatShare(share: number): string {
  const percent = 100 * share;
  if (!Number.isFinite(percent)) return "n/a";
  if (percent > 0 && percent < 0.05) return "<0.1 %";
  return `${fixed(percent, percent >= 9.95 || percent === 0 ? 0 : 1)} %`;
}

/** `4 ms`, `11.6 s`, `3 min 07 s`, `2 h 05 min`. */
export function formatDuration(seconds: number): string {
  if (!Number.isFinite(seconds)) return "n/a";
  const duration = Math.max(0, seconds);
  if (duration < 0.9995) {
    const milliseconds = duration * 1000;
    return `${fixed(milliseconds, milliseconds >= 9.5 ? 0 : 1)} ms`;
  }
  if (duration < 59.95) return `${fixed(duration, 1)} s`;
  const whole = Number(fixed(duration, 0));
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${pad(whole % 60)} s`;
  const minutes = Number(fixed(duration / 60, 0));
  return `${Math.floor(minutes / 60)} h ${pad(minutes % 60)} min`;
}

/** A moment on an axis that ends at `end` with a tick every `step` seconds: `0 s`, `250 ms`, `3 min`, `1 h 10`. */
export function formatTick(seconds: number, step: number, end: number): string {
  if (seconds === 0) return "0 s";
  if (end < 1) return `${round(seconds * 1000, step * 1000)} ms`;
  if (step < 60) {
    if (seconds < 60) return `${round(seconds, step)} s`;
    const minutes = Math.floor(seconds / 60);
    const rest = round(seconds - 60 * minutes, step);
    return `${minutes}:${Number(rest) < 10 ? "0" : ""}${rest}`;
  }
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const rest = minutes % 60;
  return rest === 0 ? `${Math.floor(minutes / 60)} h` : `${Math.floor(minutes / 60)} h ${pad(rest)}`;
}

export function formatClock(milliseconds: number): string {
  const date = new Date(milliseconds);
  return [date.getHours(), date.getMinutes(), date.getSeconds()].map(pad).join(":");
}

/**
 * Text for Plotly, which reads a few tags in any text and, where a page has MathJax, all text between dollars
 * (plotly.js#8051: `\href{javascript:…}` could be reached from titles and annotations).
 */
export function forPlotly(text: string): string {
  return text
    .replaceAll("&", "&amp;")
    .replaceAll("<", "&lt;")
    .replaceAll(">", "&gt;")
    .replaceAll("$", "&#36;");
}

function round(value: number, step: number): string {
  const decimals = step >= 1 ? 0 : Math.min(6, Math.ceil(-Math.log10(step) - 1e-9));
  return value.toFixed(decimals);
}

function pad(value: number): string {
  return String(value).padStart(2, "0");
}
