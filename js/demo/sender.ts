/** A scripted run as the frames that Python would send, with bytes that start anywhere, as they do on the wire. */

import type { BufferLike, Span } from "../src/core/protocol.ts";
import type { Script } from "./script.ts";

export interface Frame {
  content: object;
  buffers: BufferLike[];
}

const SNAPSHOT_ROWS = 2000;

export class Sender {
  time = 0;
  private seq = 0;
  private rows: number[] = [];
  private times: number[] = [];

  constructor(
    private readonly script: Script,
    private readonly run = "9f2c51aa",
  ) {}

  get isOver(): boolean {
    return this.time >= this.script.duration;
  }

  /** What was sampled up to `time`, as one message of new rows. */
  advance(time: number): Frame {
    const from = this.times.length;
    const until = Math.min(time, this.script.duration);
    for (; this.time <= until; this.time += this.script.interval) {
      const values = this.script.sample(this.time) ?? this.script.schema.series.map(() => Number.NaN);
      this.times.push(this.time);
      this.rows.push(...values);
    }
    this.time = Math.max(this.time, until);
    const times = this.times.slice(from);
    const values = this.rows.slice(from * this.columns);
    return this.frame("rows", times, values, {});
  }

  /** Everything, folded into pairs of lows and highs where it is too much. */
  snapshot(state = "running", text = ""): Frame {
    const { times, values } = this.folded();
    return this.frame("snapshot", times, values, { protocol: 1, schema: this.script.schema }, state, text);
  }

  private get columns(): number {
    return this.script.schema.series.length;
  }

  private folded(): { times: number[]; values: number[] } {
    const size = Math.ceil((2 * this.times.length) / SNAPSHOT_ROWS);
    if (size <= 2) return { times: this.times, values: this.rows };
    const times: number[] = [];
    const values: number[] = [];
    for (let row = 0; row < this.times.length; row += size) {
      const end = Math.min(row + size, this.times.length);
      times.push(this.times[row]!, this.times[row]!);
      for (const pick of [Math.min, Math.max]) {
        for (let column = 0; column < this.columns; column++) {
          let best = this.rows[row * this.columns + column]!;
          for (let r = row; r < end; r++) best = pick(best, this.rows[r * this.columns + column]!);
          values.push(best);
        }
      }
    }
    return { times, values };
  }

  private frame(
    kind: string,
    times: number[],
    values: number[],
    extra: object,
    state = "running",
    text = "",
  ): Frame {
    const { interval } = this.script;
    const status = { state, elapsed: this.time, interval, missed: 0, cost: 3.1e-5, text };
    const spans = this.script.spans
      .filter((span) => span.start <= this.time)
      .map((span) => this.asOfNow(span));
    const content = { kind, run: this.run, seq: this.seq++, rows: times.length, spans, status, ...extra };
    return { content, buffers: [unaligned(Float64Array.from(times)), unaligned(Float32Array.from(values))] };
  }

  /** An open span knows no end, and as its peak only what its finished children saw. */
  private asOfNow(span: Span): Span {
    if ((span.stop ?? 0) <= this.time) return span;
    const { spans } = this.script;
    const inside = (each: Span) => each.start >= span.start && each.stop !== null && each.stop <= this.time;
    const seen = spans.filter((each) => each.kind === "step" && inside(each));
    const devices = Object.entries(span.devices).map(([key, memory]) => {
      const peak = seen.reduce(
        (best, each) => Math.max(best, each.devices[key]?.peak ?? 0),
        memory.before ?? 0,
      );
      return [key, { ...memory, after: null, peak }];
    });
    return { ...span, stop: null, outcome: "", devices: Object.fromEntries(devices) };
  }
}

function unaligned(array: Float64Array | Float32Array): DataView {
  const bytes = new Uint8Array(array.byteLength + 3);
  bytes.set(new Uint8Array(array.buffer), 3);
  return new DataView(bytes.buffer, 3);
}
