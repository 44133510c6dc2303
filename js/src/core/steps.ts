/** Finished steps as rows of figures, oldest first; neighbours of one parent are folded if there are many. */

import type { Certainty, StepRows } from "./protocol.ts";

const MOST_ROWS = 4096;
const MOST_COLUMNS = 1024;
/** 4 MB of figures: the more devices, the fewer rows. */
const MOST_CELLS = 500_000;
/** The newest rows are not folded: the kernel may still replace them. */
const NEWEST = 64;
/** A fold keeps at most this share of the rows. */
const MOST_KEPT = 0.75;
const MOST_IN_GROUP = 2 ** 40;

const CERTAINTIES: Certainty[] = ["exact", "at least", "sampled"];

/** One step, or neighbours that were folded; seconds, and sums over the steps. NaN is "not known". */
export interface StepGroup {
  parent: number;
  first: number;
  last: number;
  start: number;
  stop: number;
  samples: number;
  longest: number;
  tokens: number;
  contentTokens: number;
}

/** A group's figures of one device, in bytes of allocated memory. */
export interface StepMemory {
  peak: number;
  certainty: Certainty;
  lowest: number;
  /** The number of the step with the highest peak (0 if several share one), and the tokens of its largest batch. */
  worst: number;
  worstTokens: number;
  after: number;
  forward: number;
  backward: number;
  optimizer: number;
}

/** A group with its figures of one device; null if the device is unknown to it. */
export type DeviceGroup = StepGroup & { memory: StepMemory | null };

/** Merges a figure of two neighbours; `isWorse` says whether the later one has the higher peak. */
type Rule = (earlier: number, later: number, isWorse: boolean) => number;
type Rules<Figures> = Record<keyof Figures, Rule>;

const earlier: Rule = (a) => a;
const later: Rule = (_, b) => b;
const sum: Rule = (a, b) => a + b;
/** The higher of two figures, either of which may be NaN. */
const highest: Rule = (a, b) => (a >= b || Number.isNaN(b) ? a : b);
const lowest: Rule = (a, b) => (a <= b || Number.isNaN(b) ? a : b);
const ofTheWorse: Rule = (a, b, isWorse) => (isWorse ? b : a);

/** The same rules as in `session/steps.py`. */
const RULES: Rules<StepGroup> = {
  parent: earlier,
  first: earlier,
  last: later,
  start: earlier,
  stop: later,
  samples: sum,
  longest: highest,
  tokens: sum,
  contentTokens: sum,
};
const DEVICE_RULES: Rules<StepMemory> = {
  peak: ofTheWorse,
  certainty: ofTheWorse,
  lowest,
  worst: ofTheWorse,
  worstTokens: ofTheWorse,
  after: later,
  forward: highest,
  backward: highest,
  optimizer: highest,
};

const FIGURES = namesOf(RULES);
const DEVICE_FIGURES = namesOf(DEVICE_RULES);
const RULE_OF = new Map([...FIGURES, ...DEVICE_FIGURES].map(({ name, rule }) => [name, rule]));

/** A figure's name here and on the wire. */
interface Figure<Figures> {
  key: keyof Figures;
  name: string;
  rule: Rule;
}

function namesOf<Figures>(rules: Rules<Figures>): Figure<Figures>[] {
  return Object.entries<Rule>(rules).map(([key, rule]) => ({
    key: key as keyof Figures,
    name: key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
    rule,
  }));
}

/** A loop, since thousands of groups are read for each drawing: it takes a third of the time of `map`. */
function filled<Figures>(figures: Figure<Figures>[], value: (figure: Figure<Figures>) => number): Figures {
  const all = {} as Record<keyof Figures, number>;
  for (const figure of figures) all[figure.key] = value(figure);
  return all as Figures;
}

/** Merges figure by figure; unknown figures of a device are NaN. */
function merged<Figures>(
  figures: Figure<Figures>[],
  one: Partial<Figures>,
  two: Partial<Figures>,
  isWorse: boolean,
): Figures {
  const of = (part: Partial<Figures>, key: keyof Figures) => (part[key] ?? Number.NaN) as number;
  return filled(figures, ({ key, rule }) => rule(of(one, key), of(two, key), isWorse));
}

/** Merges two neighbours into one group. */
export function joined(one: DeviceGroup, two: DeviceGroup): DeviceGroup {
  const isWorse = isHigher(two.memory?.peak, one.memory?.peak);
  const memory =
    (one.memory ?? two.memory) &&
    merged<StepMemory>(DEVICE_FIGURES, one.memory ?? {}, two.memory ?? {}, isWorse);
  return { ...merged<StepGroup>(FIGURES, one, two, isWorse), memory };
}

interface Column {
  rule: Rule;
  /** The column of its device's peak. */
  peak: number;
}

export class StepTable {
  length = 0;

  private names: string[] = [];
  private places = new Map<string, number>();
  private readonly placesByDevice = new Map<string, Map<string, number>>();
  private columns: Column[] = [];
  private cells = new Float64Array(0);
  /** The number of steps in a group, as far as groups were needed. */
  private size = 1;

  constructor(private readonly limit = MOST_ROWS) {}

  get stop(): number {
    return this.length === 0 ? Number.NEGATIVE_INFINITY : this.at(this.length - 1, "stop");
  }

  private get mostRows(): number {
    return Math.min(this.limit, Math.floor(MOST_CELLS / Math.max(1, this.names.length)));
  }

  /** Sets the names of the columns, which only ever grow at the end. */
  adopt(names: string[]): void {
    const shared = Math.min(names.length, this.names.length);
    const isSame = names.slice(0, shared).every((name, place) => name === this.names[place]);
    if (isSame && names.length <= this.names.length) return;
    const held = isSame ? this.rows() : { values: new Float64Array(0), columns: 0 };
    this.names = names.slice(0, MOST_COLUMNS);
    this.placesByDevice.clear();
    this.places = new Map(this.names.map((name, place) => [name, place]));
    this.columns = this.names.map((name) => {
      const slash = name.lastIndexOf("/");
      const figure = name.slice(slash + 1);
      const rule = RULE_OF.get(figure) ?? earlier;
      return { rule, peak: this.places.get(`${name.slice(0, slash)}/peak`) ?? -1 };
    });
    this.cells = new Float64Array(0);
    this.clear();
    this.append(held);
  }

  /** Appends the rows that end later than the newest one; a row replaces those within it. */
  append(rows: StepRows): void {
    if (this.names.length === 0 || rows.columns === 0) return;
    for (let at = 0; at + rows.columns <= rows.values.length; at += rows.columns) {
      this.put(rows.values.subarray(at, at + Math.min(rows.columns, this.names.length)));
    }
  }

  /** Replaces all rows that ended after the second `from`, except those later than the last of `rows`. */
  replace(rows: StepRows, from: number): void {
    const held = this.rows();
    const earlier = this.firstAfter(from) * held.columns;
    this.clear();
    this.append({ ...held, values: held.values.subarray(0, earlier) });
    this.append(rows);
    this.append(held);
  }

  clear(): void {
    this.length = 0;
    this.size = 1;
  }

  at(row: number, name: string): number {
    const place = this.places.get(name);
    return place === undefined ? Number.NaN : this.cells[row * this.names.length + place]!;
  }

  group(row: number): StepGroup {
    return filled(FIGURES, ({ name }) => this.at(row, name));
  }

  /** Null if the row has no figures of the device. */
  memory(row: number, device: string): StepMemory | null {
    const places = this.placesOf(device);
    // The index of a missing column is NaN, which no cell has.
    const figure = (name: string) => this.cells[row * this.names.length + places.get(name)!] ?? Number.NaN;
    if (Number.isNaN(figure("peak"))) return null;
    const memory = filled(DEVICE_FIGURES, ({ name }) => figure(name));
    memory.certainty = CERTAINTIES[figure("certainty")] ?? "sampled";
    return memory;
  }

  groupOn(row: number, device: string): DeviceGroup {
    return Object.assign(this.group(row), { memory: this.memory(row, device) });
  }

  /** Cached, since thousands of rows are read for each drawing. */
  private placesOf(device: string): Map<string, number> {
    const known = this.placesByDevice.get(device);
    if (known !== undefined) return known;
    const places = new Map(
      DEVICE_FIGURES.map(({ name }) => [name, this.places.get(`${device}/${name}`) ?? Number.NaN]),
    );
    this.placesByDevice.set(device, places);
    return places;
  }

  /** The first row with the highest peak on a device; -1 if there is none. */
  highest(device: string): number {
    let best = -1;
    let peak = Number.NEGATIVE_INFINITY;
    const place = this.places.get(`${device}/peak`);
    if (place === undefined) return -1;
    for (let row = 0; row < this.length; row++) {
      const next = this.cells[row * this.names.length + place]!;
      if (next > peak) {
        best = row;
        peak = next;
      }
    }
    return best;
  }

  private firstAfter(second: number): number {
    let row = 0;
    while (row < this.length && this.at(row, "stop") <= second) row++;
    return row;
  }

  private rows(): StepRows {
    const columns = this.names.length;
    return { values: this.cells.slice(0, this.length * columns), columns };
  }

  private put(figures: Float64Array): void {
    const width = this.names.length;
    const row = new Float64Array(width).fill(Number.NaN);
    row.set(figures);
    const [parent, start, stop] = ["parent", "start", "stop"].map((name) => row[this.places.get(name) ?? -1]);
    // A row with a missing or wrong time is ignored: NaN compares false.
    if (!(stop! > this.stop && start! <= stop!)) return;
    while (this.length > 0) {
      const newest = this.length - 1;
      const isWithin = this.at(newest, "parent") === parent && this.at(newest, "start") >= start!;
      if (!isWithin) break;
      this.length -= 1;
    }
    if (this.length >= this.mostRows) this.fold();
    if ((this.length + 1) * width > this.cells.length) this.grow();
    this.cells.set(row, this.length * width);
    this.length += 1;
  }

  private grow(): void {
    const width = this.names.length;
    const cells = new Float64Array(Math.min(Math.max(64, 2 * this.length), this.mostRows) * width);
    cells.set(this.cells.subarray(0, this.length * width));
    this.cells = cells;
  }

  /**
   * Makes room by merging rows into groups of one size, as the kernel does; if none can be merged, drops the oldest
   * half.
   */
  private fold(): void {
    const newest = Math.max(1, Math.min(NEWEST, this.length >> 1));
    const old = this.length - newest;
    const enough = Math.ceil(MOST_KEPT * old);
    let kept = this.mergeFirst(old);
    for (; kept > enough && this.size < MOST_IN_GROUP; kept = this.mergeFirst(kept)) this.size *= 2;
    const dropped = kept > enough ? Math.ceil(kept / 2) : 0;
    const width = this.names.length;
    this.cells.copyWithin(kept * width, old * width, this.length * width);
    this.cells.copyWithin(0, dropped * width, (kept + newest) * width);
    this.length = kept + newest - dropped;
  }

  /** Merges neighbours among the first `count` rows up to the size of a group; returns the number of rows left. */
  private mergeFirst(count: number): number {
    const width = this.names.length;
    const sizeOf = (row: number) => this.at(row, "last") - this.at(row, "first") + 1;
    let kept = 0;
    for (let row = 1; row < count; row++) {
      const isOne = this.at(row, "parent") === this.at(kept, "parent");
      if (isOne && sizeOf(kept) + sizeOf(row) <= this.size) this.merge(kept, row);
      else this.cells.copyWithin(++kept * width, row * width, (row + 1) * width);
    }
    return kept + 1;
  }

  /** Merges the row `later` into `row`. */
  private merge(row: number, later: number): void {
    const { cells, columns } = this;
    const [one, two] = [row, later].map((at) => at * columns.length) as [number, number];
    const before = cells.slice(one, one + columns.length);
    columns.forEach(({ rule, peak }, at) => {
      cells[one + at] = rule(before[at]!, cells[two + at]!, isHigher(cells[two + peak], before[peak]));
    });
  }
}

function isHigher(peak = Number.NaN, than = Number.NaN): boolean {
  return peak > than || Number.isNaN(than);
}
