/** Findings and guides of a run, decoded from the wire: bounded, without malformed entries. */

/** The most severe first. */
export const SEVERITIES = ["critical", "warn", "info"] as const;
export type Severity = (typeof SEVERITIES)[number];

/** A judgement about the run, in one sentence. */
export interface Finding {
  kind: string;
  severity: Severity;
  title: string;
  /** The id of its span. */
  span: number | null;
  /** Its device and time, if the message has them. */
  device: string | null;
  time: number | null;
  /** How many bytes names keep of what is not attributed, by seconds; where that was found. */
  kept?: Kept[];
}

export type Kept = [seconds: number, bytes: number];

const GUIDES = ["budget", "trend", "oom"] as const;

/**
 * A straight line over a device's chart, or the instant at which memory ran out; times in seconds, heights in bytes.
 */
export interface Guide {
  device: string;
  kind: (typeof GUIDES)[number];
  label: string;
  start: number;
  /** Null if it continues as long as the run. */
  stop: number | null;
  first: number;
  last: number;
  /** The margin of error at each end, either way. */
  band: [number, number];
}

const MOST_FINDINGS = 8;
const MOST_GUIDES = 30;
const MOST_LETTERS = 240;
const MOST_KEPT = 64;
/** The largest plausible figure, in bytes or seconds. */
const MOST_FIGURE = 2 ** 60;

export function decodeFindings(raw: unknown): Finding[] {
  return someOf(raw, MOST_FINDINGS, ({ kind, severity, title, span, device, time, kept }): Finding | null => {
    const known = SEVERITIES.find((each) => each === severity);
    if (known === undefined || typeof kind !== "string" || typeof title !== "string") return null;
    return {
      kind,
      severity: known,
      title: title.slice(0, MOST_LETTERS),
      span: numberOr(span, null),
      device: typeof device === "string" ? device : null,
      time: numberOr(time, null),
      ...(kept === undefined ? {} : { kept: decodeKept(kept) }),
    };
  });
}

function decodeKept(raw: unknown): Kept[] {
  return someOf(raw, MOST_KEPT, ({ 0: seconds, 1: bytes }): Kept | null => {
    const point: Kept = [numberOr(seconds, Number.NaN), numberOr(bytes, Number.NaN)];
    return point.some(Number.isNaN) ? null : point;
  });
}

export function decodeGuides(raw: unknown): Guide[] {
  return someOf(raw, MOST_GUIDES, (entry): Guide | null => {
    const { device, kind, label, stop, band = [0, 0] } = entry;
    const known = GUIDES.find((each) => each === kind);
    if (known === undefined) return null;
    if (typeof device !== "string" || typeof label !== "string" || !Array.isArray(band)) return null;
    const [start, first, last, ...reach] = [entry.start, entry.first, entry.last, ...band].map((each) =>
      numberOr(each, Number.NaN),
    ) as [number, number, number, ...number[]];
    const [low, high] = reach as [number, number];
    if (reach.length !== 2 || Number.isNaN(start + first + last + low + high)) return null;
    const ends = { start, stop: numberOr(stop, null), first, last };
    return { device, kind: known, label: label.slice(0, MOST_LETTERS), ...ends, band: [low, high] };
  });
}

export function someOf<T>(
  raw: unknown,
  most: number,
  read: (entry: Record<string, unknown>) => T | null,
): T[] {
  if (!Array.isArray(raw)) return [];
  return raw.slice(0, most).flatMap((entry) => {
    const known = typeof entry === "object" && entry !== null ? read(entry) : null;
    return known === null ? [] : [known];
  });
}

export function numberOr<T>(value: unknown, otherwise: T): number | T {
  return typeof value === "number" && Math.abs(value) < MOST_FIGURE ? value : otherwise;
}
