/** Scripted runs: memory as a function of time, and the spans that go with it. Nothing here is measured. */

import type { Schema, Series, Span } from "../src/core/protocol.ts";
import { type Judged, judge } from "./judge.ts";
import { longestOf, noise, type Plan, peakOf } from "./plan.ts";

const GIB = 2 ** 30;
const MIB = 2 ** 20;

export interface Script {
  schema: Schema;
  interval: number;
  duration: number;
  spans: Span[];
  /** Rows of the schema's `step_columns`, in order. */
  steps: number[][];
  /** One reading for each series, in bytes; null where the poller was kept from sampling. */
  sample(time: number): number[] | null;
  /** What is judged of it up to some second; nothing where this is left out. */
  judged?(time: number): Judged;
}

/** What one device holds, in GiB where nothing is scaled; NaN where it is not known. */
interface Held {
  weights: number;
  buffers: number;
  gradients: number;
  optimizer: number;
  /** What nothing explained when the step began; NaN outside of steps. */
  unattributed: number;
  /** Of no tensor's, or of none that was found. */
  other: number;
}

const MODEL = {
  weights: 1.22,
  buffers: 0.03,
  gradients: 0,
  optimizer: 0,
  unattributed: Number.NaN,
  other: 0,
};
const TRAINED = { ...MODEL, optimizer: 2.44, other: 0.06 };
const GRADIENTS = 0.61;
const CONTEXT = 0.62;
const PARTS = ["weights", "buffers", "gradients", "optimizer", "unattributed"] as const;

const GPU = "NVIDIA H200";

/** A fine-tuning: load, epochs of steps whose batches differ, with an evaluation and a save after each. */
export function fineTune(plan: Plan): Script {
  const { steps, stepSeconds, scale = 1, gap, epochs = 2 } = plan;
  const load = 4 * stepSeconds;
  const perEpoch = Math.ceil(steps / epochs);
  const evaluation = Math.max(3, perEpoch / 40) * stepSeconds;
  const save = evaluation / 3;
  const epochSeconds = perEpoch * stepSeconds + evaluation + save;
  const trainStop = load + steps * stepSeconds + epochs * (evaluation + save);
  const times = { ...plan, epochs, perEpoch, load, evaluation, save, epochSeconds, trainStop };
  const kept = (time: number): Held => {
    const left = leftBy(plan, time, load);
    const now = held(time);
    return { ...now, other: now.other + left, unattributed: now.unattributed + left };
  };
  const held = (time: number): Held => {
    if (time < load) return partly(MODEL, Math.min(1, time / load));
    if (time >= trainStop) return TRAINED;
    const epoch = Math.min(epochs - 1, Math.floor((time - load) / epochSeconds));
    const within = (time - load - epoch * epochSeconds) / stepSeconds;
    const count = Math.min(perEpoch, steps - epoch * perEpoch);
    if (within < count) return heldInStep(plan, epoch * perEpoch + Math.floor(within), within % 1);
    const isEvaluation = within * stepSeconds < count * stepSeconds + evaluation;
    return { ...TRAINED, other: isEvaluation ? 0.06 + 0.4 * noise(Math.floor(time * 7)) : 0.09 };
  };
  const keys = deviceKeys(plan);
  let reserved = 0;
  const sample = (time: number) => {
    if (gap && time > gap[0] && time < gap[1]) return null;
    return keys.flatMap((key, index) => {
      const share = scale * (1 - 0.07 * index) * GIB;
      const now = kept(time);
      const allocated = sumOf(now) * share;
      reserved = index === 0 ? Math.max(reserved, allocated * 1.06) : reserved;
      const ours = reserved * (1 - 0.07 * index);
      const lines = [allocated, ours, ours + (isHost(key) ? 6 : CONTEXT + 0.03) * GIB];
      return [...lines, ...partsTold(plan, key, now, share)];
    });
  };
  const schema = { ...schemaOf(plan), step_columns: stepColumns(keys) };
  const duration = trainStop + stepSeconds;
  const judged = (time: number) => judge(plan, load, deviceKeys(plan), time);
  return { schema, interval: plan.interval ?? 0.1, duration, ...spansOf(times), sample, judged };
}

/** By the steps of the first epoch: what leaks has one. */
function leftBy({ leak = 0, steps, stepSeconds }: Plan, time: number, load: number): number {
  return leak * Math.max(0, Math.min(steps, Math.floor((time - load) / stepSeconds)));
}

/** Activations rise in the forward and fall in the backward, while gradients come; states come with the first step. */
function heldInStep(plan: Plan, step: number, phase: number): Held {
  const before = step === 0 ? { ...MODEL, other: 0.06 } : TRAINED;
  const top = peakOf(plan, step) - sumOf(before);
  const forward = Math.min(1, phase / 0.45);
  const backward = Math.max(0, Math.min(1, (phase - 0.45) / 0.35));
  const isStepping = phase > 0.8 && step === 0;
  return {
    ...before,
    gradients: phase < 0.96 ? GRADIENTS * backward : 0,
    optimizer: isStepping ? (TRAINED.optimizer * (phase - 0.8)) / 0.2 : before.optimizer,
    unattributed: before.other,
    other: before.other + top * forward * (1 - backward),
  };
}

function partly(held: Held, share: number): Held {
  return { ...held, weights: held.weights * share, buffers: held.buffers * share };
}

function sumOf({ weights, buffers, gradients, optimizer, other }: Held): number {
  return weights + buffers + gradients + optimizer + other;
}

/** In the order of `seriesOf`. */
function partsTold({ parts = true }: Plan, key: string, held: Held, share: number): number[] {
  const known = parts ? PARTS.map((name) => held[name] * share) : [];
  return isHost(key) ? known : [...known, CONTEXT * GIB];
}

interface Times extends Plan {
  epochs: number;
  perEpoch: number;
  load: number;
  evaluation: number;
  save: number;
  epochSeconds: number;
  trainStop: number;
}

const BATCH = 8;

function spansOf(times: Times): { spans: Span[]; steps: number[][] } {
  const { load, perEpoch, epochs, epochSeconds, trainStop, evaluation, save, stepSeconds } = times;
  const { scale = 1, leak = 0 } = times;
  const spans: Span[] = [];
  const steps: number[][] = [];
  const held = 3.75 * GIB * scale;
  const peaks = Array.from({ length: times.steps }, (_, step) => peakOf(times, step) + step * leak);
  const highest = peaks.reduce((one, two) => Math.max(one, two)) * scale * GIB;
  const keys = deviceKeys(times);
  const add = (
    parent: number | null,
    kind: string,
    label: string,
    [start, stop]: [number, number],
    peak: number,
  ) => {
    const memory = { before: start < load ? 0 : held, after: held, peak, certainty: "exact" as const };
    const devices = Object.fromEntries(keys.map((key) => [key, memory]));
    spans.push({ id: spans.length + 1, parent, kind, label, start, stop, outcome: "done", devices });
    return spans.length;
  };
  const cell = add(
    null,
    "cell",
    `cell [7] ${times.label}`,
    [0.5 * load, trainStop + 0.8 * stepSeconds],
    highest,
  );
  const train = add(cell, "train", "train", [load, trainStop], highest);
  spans[train - 1]!.counts = { steps: times.steps, epochs };
  for (let epoch = 0; epoch < epochs; epoch++) {
    const first = epoch * perEpoch;
    const last = Math.min(first + perEpoch, times.steps);
    const start = load + epoch * epochSeconds;
    const stop = start + (last - first) * stepSeconds;
    const parent = add(train, "epoch", `epoch ${epoch + 1} of ${epochs}`, [start, stop], highest);
    for (let step = first; step < last; step++) {
      const from = start + (step - first) * stepSeconds;
      const longest = longestOf(times, step);
      const group = [parent, step + 1, step + 1, from, from + 0.98 * stepSeconds, BATCH, longest];
      const tokens = BATCH * longest;
      const peak = peaks[step]! * scale * GIB;
      const device = [peak, 0, peak, step + 1, tokens, held, 0.9 * peak, peak, 1.05 * held];
      steps.push([...group, tokens, 0.9 * tokens, ...keys.flatMap(() => device)]);
    }
    add(train, "evaluate", "evaluate", [stop, stop + evaluation], 4.2 * GIB * scale);
    add(train, "save", "save", [stop + evaluation, stop + evaluation + save], 3.8 * GIB * scale);
  }
  return { spans, steps };
}

function stepColumns(keys: string[]): string[] {
  const group = "parent first last start stop samples longest tokens content_tokens".split(" ");
  const device = "peak certainty lowest worst worst_tokens after forward backward optimizer".split(" ");
  return [...group, ...keys.flatMap((key) => device.map((figure) => `${key}/${figure}`))];
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
      series: seriesOf("cpu", false),
    },
    interval: seconds / 100,
    duration: seconds,
    spans: [{ ...cell, devices: { cpu: memory } }],
    steps: [],
    sample: (time) => [heap(time), 612 * MIB, 6.3 * GIB],
  };
}

function schemaOf(plan: Plan): Schema {
  const { label, total = 150_754_820_096, parts = true } = plan;
  const keys = deviceKeys(plan);
  return {
    label,
    started_at: 1763683200,
    devices: keys.map((key) =>
      isHost(key) ? { key, name: "this process", total: 16 * GIB } : { key, name: GPU, total },
    ),
    series: keys.flatMap((key) => seriesOf(key, parts)),
  };
}

function seriesOf(device: string, hasParts: boolean): Series[] {
  const labels = isHost(device)
    ? ["heap in use", "resident", "machine in use"]
    : ["allocated", "reserved", "device in use"];
  const lines = ["allocated", "reserved", "device_used"].map((metric, index) => ({
    device,
    metric,
    label: labels[index]!,
  }));
  const parts = [...(hasParts ? PARTS : []), ...(isHost(device) ? [] : ["context"])];
  return [...lines, ...parts.map((metric) => ({ device, metric }))];
}

function deviceKeys({ devices, host = false }: Plan): string[] {
  if (host) return ["cpu"];
  const gpus = Array.from({ length: Math.max(1, devices - (devices > 1 ? 1 : 0)) }, (_, at) => `cuda:${at}`);
  return devices > 1 ? [...gpus, "cpu"] : gpus;
}

function isHost(key: string): boolean {
  return !key.includes(":");
}
