/** Scripted runs: memory as a function of time, and the spans that go with it. Nothing here is measured. */

import type { Device, Schema, Span } from "../src/core/protocol.ts";

const GIB = 2 ** 30;
const MIB = 2 ** 20;

export interface Script {
  schema: Schema;
  interval: number;
  duration: number;
  spans: Span[];
  /** One reading for each series, in bytes; null where the poller was kept from sampling. */
  sample(time: number): number[] | null;
}

export interface Plan {
  label: string;
  devices: number;
  steps: number;
  stepSeconds: number;
  scale?: number;
  total?: number;
  gap?: readonly [number, number];
  interval?: number;
}

const GPU = "NVIDIA H200";

/** A small fine-tuning: load, two epochs of steps with an evaluation between, save. */
export function fineTune(plan: Plan): Script {
  const { steps, stepSeconds, scale = 1, gap } = plan;
  const load = 4 * stepSeconds;
  const evaluation = 3 * stepSeconds;
  const half = Math.ceil(steps / 2);
  const evalStart = load + half * stepSeconds;
  const duration = load + steps * stepSeconds + evaluation + stepSeconds;
  const worst = Math.floor(0.3 * steps);
  const stepAt = (time: number) => {
    const t = time - load;
    return time < evalStart ? t / stepSeconds : (t - evaluation) / stepSeconds;
  };
  const rise = (step: number) => (step === worst ? 2.64 : 1.6 + 0.9 * noise(step));
  const own = (time: number): number => {
    if (time < load) return 1.25 * Math.min(1, time / load);
    if (time >= evalStart && time < evalStart + evaluation) return 3.75 + 0.4 * noise(Math.floor(time * 7));
    const at = stepAt(time);
    if (at < 0 || at >= steps) return 3.75;
    const base = at < 1 ? 1.25 + 2.5 * at : 3.75;
    const phase = at - Math.floor(at);
    return base + rise(Math.floor(at)) * (phase < 0.5 ? 2 * phase : 2 - 2 * phase) * 1.18;
  };
  let reserved = 0;
  const sample = (time: number) => {
    if (gap && time > gap[0] && time < gap[1]) return null;
    return Array.from({ length: plan.devices }, (_, index) => {
      const share = scale * (1 - 0.07 * index) * GIB;
      const allocated = own(time) * share;
      reserved = index === 0 ? Math.max(reserved, allocated * 1.06) : reserved;
      return [allocated, reserved * (1 - 0.07 * index), reserved * (1 - 0.07 * index) + 0.62 * GIB * scale];
    }).flat();
  };
  const spans = spansOf(
    { ...plan, load, evaluation, half, evalStart, duration },
    (step) => (3.75 + rise(step) * 1.18) * scale * GIB,
  );
  return { schema: schemaOf(plan), interval: plan.interval ?? 0.1, duration, spans, sample };
}

interface Times extends Plan {
  load: number;
  evaluation: number;
  half: number;
  evalStart: number;
  duration: number;
}

function spansOf(times: Times, peakOf: (step: number) => number): Span[] {
  const { steps, stepSeconds, load, evaluation, half, evalStart, duration, scale = 1 } = times;
  const spans: Span[] = [];
  const held = 3.75 * GIB * scale;
  const add = (
    parent: number | null,
    kind: string,
    label: string,
    start: number,
    stop: number,
    peak: number,
  ) => {
    const memory = { before: start < load ? 0 : held, after: held, peak, certainty: "exact" as const };
    const devices = Object.fromEntries(deviceKeys(times.devices).map((key) => [key, memory]));
    spans.push({ id: spans.length + 1, parent, kind, label, start, stop, outcome: "done", devices });
    return spans.length;
  };
  const highest = Math.max(...Array.from({ length: steps }, (_, step) => peakOf(step)));
  const cell = add(null, "cell", `cell [7] ${times.label}`, 0.5 * load, 0.99 * duration, highest);
  const train = add(cell, "train", "train", load, 0.985 * duration, highest);
  for (const epoch of [0, 1]) {
    const first = epoch * half;
    const last = epoch === 0 ? half : steps;
    const start = load + first * stepSeconds + epoch * evaluation;
    const parent = add(
      train,
      "epoch",
      `epoch ${epoch + 1}`,
      start,
      start + (last - first) * stepSeconds,
      highest,
    );
    for (let step = first; step < last; step++) {
      const from = start + (step - first) * stepSeconds;
      add(parent, "step", `step ${step + 1}`, from, from + 0.98 * stepSeconds, peakOf(step));
    }
    if (epoch === 0) add(train, "evaluate", "evaluate", evalStart, evalStart + evaluation, 4.2 * GIB * scale);
  }
  return spans;
}

/** An ordinary cell on a machine without a GPU. */
export function cpuCell(seconds: number): Script {
  const heap = (time: number) => (180 + 120 * Math.abs(Math.sin((9 * time) / seconds))) * MIB;
  const memory = { before: 180 * MIB, after: 205 * MIB, peak: 302.4 * MIB, certainty: "sampled" as const };
  const cell = {
    id: 1,
    parent: null,
    kind: "cell",
    label: "cell [3]",
    start: 0,
    stop: seconds,
    outcome: "done",
  };
  return {
    schema: {
      label: "cell [3]",
      started_at: 1763683200,
      devices: [{ key: "cpu", name: "this process", total: 16 * GIB }],
      series: seriesOf({ key: "cpu", name: "", total: null }, ["heap in use", "resident", "machine in use"]),
    },
    interval: seconds / 100,
    duration: seconds,
    spans: [{ ...cell, devices: { cpu: memory } }],
    sample: (time) => [heap(time), 612 * MIB, 6.3 * GIB],
  };
}

function schemaOf({ label, devices: count, total = 150_754_820_096 }: Plan): Schema {
  const devices = deviceKeys(count).map((key) => ({
    key,
    name: key === "cpu" ? "this process" : GPU,
    total,
  }));
  return {
    label,
    started_at: 1763683200,
    devices,
    series: devices.flatMap((device) =>
      seriesOf(
        device,
        device.key === "cpu"
          ? ["heap in use", "resident", "machine in use"]
          : ["allocated", "reserved", "device in use"],
      ),
    ),
  };
}

function seriesOf({ key }: Device, labels: string[]) {
  return ["allocated", "reserved", "device_used"].map((metric, index) => ({
    key: `${key}/${metric}`,
    device: key,
    metric,
    label: labels[index]!,
  }));
}

function deviceKeys(count: number): string[] {
  const gpus = Array.from(
    { length: Math.max(1, count - (count > 1 ? 1 : 0)) },
    (_, index) => `cuda:${index}`,
  );
  return count > 1 ? [...gpus, "cpu"] : gpus;
}

/** Repeatable: the same run looks the same every time. */
function noise(seed: number): number {
  const x = Math.sin(seed * 127.1 + 11.7) * 43758.5453;
  return x - Math.floor(x);
}
