/** A scripted run as the frames that Python would send, with bytes that start anywhere, as they do on the wire. */

import type { BufferLike, Span } from "../src/core/protocol.ts";
import { StepTable } from "../src/core/steps.ts";
import type { Script } from "./script.ts";

export interface Frame {
  content: object;
  buffers: BufferLike[];
}

const SNAPSHOT_ROWS = 2000;
const SNAPSHOT_STEPS = 200;

export class Sender {
  time = 0;
  private seq = 0;
  private rows: number[] = [];
  private times: number[] = [];
  private stepsSent = 0;

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
    return this.frame("rows", { times, values, steps: this.newSteps() }, {});
  }

  /** Everything, folded into pairs of lows and highs where it is too much. */
  snapshot(state = "running", text = ""): Frame {
    this.newSteps();
    const steps = this.foldedSteps();
    const extra = { protocol: 1, schema: this.script.schema };
    return this.frame("snapshot", { ...this.folded(), steps }, extra, state, text);
  }

  private newSteps(): number[] {
    const { steps } = this.script;
    const from = this.stepsSent;
    while (this.stepsSent < steps.length && steps[this.stepsSent]![4]! <= this.time) this.stepsSent++;
    return steps.slice(from, this.stepsSent).flat();
  }

  /** The page's own table folds as the kernel's does. */
  private foldedSteps(): number[] {
    const names = this.script.schema.step_columns ?? [];
    const table = new StepTable(SNAPSHOT_STEPS);
    table.adopt(names);
    for (const row of this.script.steps.slice(0, this.stepsSent)) {
      table.append({ values: Float64Array.from(row), columns: names.length });
    }
    const rows = Array.from({ length: table.length }, (_, row) => row);
    return rows.flatMap((row) => names.map((name) => table.at(row, name)));
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
    { times, values, steps }: { times: number[]; values: number[]; steps: number[] },
    extra: object,
    state = "running",
    text = "",
  ): Frame {
    const { interval } = this.script;
    const status = { state, elapsed: this.time, interval, missed: 0, cost: 3.1e-5, text };
    const spans = this.script.spans
      .filter((span) => span.start <= this.time)
      .map((span) => this.asOfNow(span));
    const count = steps.length / Math.max(1, this.script.schema.step_columns?.length ?? 0);
    const content = {
      kind,
      run: this.run,
      seq: this.seq++,
      rows: times.length,
      spans,
      status,
      steps: count,
      ...this.script.judged?.(this.time),
      ...extra,
    };
    const arrays = [Float64Array.from(times), Float32Array.from(values), Float64Array.from(steps)];
    return { content, buffers: arrays.map(unaligned) };
  }

  /** An open span knows no end, and as its peak only what its finished children saw. */
  private asOfNow(span: Span): Span {
    if ((span.stop ?? 0) <= this.time) return span;
    const { schema, steps } = this.script;
    const seen = steps.slice(0, this.stepsSent).filter((row) => row[3]! >= span.start);
    const devices = Object.entries(span.devices).map(([key, memory]) => {
      const column = schema.step_columns?.indexOf(`${key}/peak`) ?? -1;
      const peak = seen.reduce((best, row) => Math.max(best, row[column] ?? 0), memory.before ?? 0);
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
