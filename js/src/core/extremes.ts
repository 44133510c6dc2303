/**
 * The lowest and highest value of any stretch of a growing column, without reading all of it.
 *
 * Two levels of blocks (64 and 4,096 values) are kept up to date as values arrive. A stretch costs its two ragged ends
 * and the blocks between them, an update only the new values.
 */

const FINE_BITS = 6;
const COARSE_BITS = 12;

class Blocks {
  low = new Float32Array(0);
  high = new Float32Array(0);

  constructor(readonly bits: number) {}

  put(index: number, value: number): void {
    const block = index >> this.bits;
    if (block >= this.low.length) this.grow(block + 1);
    if (value < this.low[block]!) this.low[block] = value;
    if (value > this.high[block]!) this.high[block] = value;
  }

  clear(): void {
    this.low.fill(Number.POSITIVE_INFINITY);
    this.high.fill(Number.NEGATIVE_INFINITY);
  }

  private grow(least: number): void {
    const length = Math.max(least, 2 * this.low.length, 64);
    const low = new Float32Array(length).fill(Number.POSITIVE_INFINITY);
    const high = new Float32Array(length).fill(Number.NEGATIVE_INFINITY);
    low.set(this.low);
    high.set(this.high);
    this.low = low;
    this.high = high;
  }
}

/** A column of values with the extremes of its blocks. NaN is "not available" and never an extreme. */
export class Column {
  values = new Float32Array(0);
  private readonly fine = new Blocks(FINE_BITS);
  private readonly coarse = new Blocks(COARSE_BITS);
  /** The result of the last `scan`: two fields, without an allocation in each of some thousand calls. */
  low = Number.NaN;
  high = Number.NaN;

  reserve(capacity: number): void {
    if (capacity <= this.values.length) return;
    const values = new Float32Array(capacity).fill(Number.NaN);
    values.set(this.values);
    this.values = values;
  }

  put(index: number, value: number): void {
    this.values[index] = value;
    if (Number.isNaN(value)) return;
    this.fine.put(index, value);
    this.coarse.put(index, value);
  }

  clear(): void {
    this.values.fill(Number.NaN);
    this.fine.clear();
    this.coarse.clear();
  }

  /** Sets `low` and `high` to the extremes of rows [from, to); to NaN where there is no value. */
  scan(from: number, to: number): void {
    this.low = Number.POSITIVE_INFINITY;
    this.high = Number.NEGATIVE_INFINITY;
    let index = from;
    while (index < to) {
      if (isBlock(index, to, COARSE_BITS)) {
        this.take(this.coarse, index >> COARSE_BITS);
        index += 1 << COARSE_BITS;
      } else if (isBlock(index, to, FINE_BITS)) {
        this.take(this.fine, index >> FINE_BITS);
        index += 1 << FINE_BITS;
      } else {
        const value = this.values[index]!;
        if (value < this.low) this.low = value;
        if (value > this.high) this.high = value;
        index += 1;
      }
    }
    if (this.high < this.low) {
      this.low = Number.NaN;
      this.high = Number.NaN;
    }
  }

  /** The first row of [from, to) that has the stretch's highest value, or -1. */
  highest(from: number, to: number): number {
    this.scan(from, to);
    const { high } = this;
    return this.find(high, from, to, (blocks, block) => blocks.high[block]! < high);
  }

  /** The first row of [from, to) that has the stretch's lowest value, or -1. */
  lowest(from: number, to: number): number {
    this.scan(from, to);
    const { low } = this;
    return this.find(low, from, to, (blocks, block) => blocks.low[block]! > low);
  }

  private find(
    value: number,
    from: number,
    to: number,
    lacks: (blocks: Blocks, block: number) => boolean,
  ): number {
    let index = from;
    while (index < to) {
      if (isBlock(index, to, COARSE_BITS) && lacks(this.coarse, index >> COARSE_BITS)) {
        index += 1 << COARSE_BITS;
      } else if (isBlock(index, to, FINE_BITS) && lacks(this.fine, index >> FINE_BITS)) {
        index += 1 << FINE_BITS;
      } else {
        if (this.values[index] === value) return index;
        index += 1;
      }
    }
    return -1;
  }

  private take(blocks: Blocks, block: number): void {
    // A block beyond the last value has no entry, and is empty.
    if (block >= blocks.low.length) return;
    if (blocks.low[block]! < this.low) this.low = blocks.low[block]!;
    if (blocks.high[block]! > this.high) this.high = blocks.high[block]!;
  }
}

function isBlock(index: number, to: number, bits: number): boolean {
  const size = 1 << bits;
  return (index & (size - 1)) === 0 && index + size <= to;
}
