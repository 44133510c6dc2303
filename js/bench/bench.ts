/**
 * Main-thread time of one update: wire frame in, figure drawn and painted, in milliseconds.
 *
 * Eighteen series (two devices with their parts), ten new rows an update, as much history as asked for. The frame is decoded, stored,
 * decimated and handed to Plotly as in a notebook; only the pacing is by hand. `prepare(rows)` fills the history,
 * `measure(updates)` sends and draws; run.py reads the CPU time around it.
 */

import { decode, type Rows } from "../src/core/protocol.ts";
import { Store } from "../src/core/store.ts";
import { View } from "../src/core/view.ts";

const DEVICES = ["cuda:0", "cuda:1"];
const LINES = ["allocated", "reserved", "device_used"];
const METRICS = [...LINES, "weights", "buffers", "gradients", "optimizer", "unattributed", "context"];
const NEW_ROWS = 10;
const INTERVAL = 0.1;
const GIB = 2 ** 30;

interface Result {
  receive: number;
  draw: number;
  paint: number;
  total: number;
  worst: number;
  points: number;
}

let bench: { store: Store; view: View; rows: number } | null = null;
let seq = 0;

async function prepare(rows: number): Promise<void> {
  const host = document.createElement("div");
  host.style.width = "800px";
  document.body.replaceChildren(host);
  const store = new Store(Date.now);
  const view = new View(host, store, { signal: new AbortController().signal });
  receive(store, "snapshot", sampled(0, 2));
  for (let from = 2; from < rows; from += 5000)
    receive(store, "rows", sampled(from, Math.min(5000, rows - from)));
  await drawn(view);
  bench = { store, view, rows };
}

async function measure(updates: number): Promise<Result> {
  const { store, view, rows } = bench!;
  const samples: Omit<Result, "worst" | "points">[] = [];
  for (let update = 0; update < updates; update++) {
    const before = view.element.dataset.hfmemDraws;
    const frame = sampled(rows + update * NEW_ROWS, NEW_ROWS);
    const started = performance.now();
    receive(store, "rows", frame);
    const received = performance.now() - started;
    await drawn(view, before);
    const draw = Number(view.element.dataset.hfmemDrawMs);
    const drawEnd = performance.now();
    await painted();
    const paint = performance.now() - drawEnd;
    samples.push({ receive: received, draw, paint, total: received + draw + paint });
  }
  bench!.rows += updates * NEW_ROWS;
  const middle = (name: keyof (typeof samples)[0]) => median(samples.map((sample) => sample[name]));
  return {
    receive: middle("receive"),
    draw: middle("draw"),
    paint: middle("paint"),
    total: middle("total"),
    worst: Math.max(...samples.map(({ total }) => total)),
    points: Number(view.element.dataset.hfmemPoints),
  };
}

function receive(store: Store, kind: "rows" | "snapshot", { time, values }: Rows): void {
  const status = {
    state: "running",
    elapsed: time.at(-1),
    interval: INTERVAL,
    missed: 0,
    cost: null,
    text: "",
  };
  const series = DEVICES.flatMap((device) => METRICS.map((metric) => ({ device, metric, label: metric })));
  const devices = DEVICES.map((key) => ({ key, name: "bench", total: 150 * GIB }));
  const schema = { label: "bench", started_at: 0, devices, series };
  const content = {
    kind,
    protocol: 1,
    run: "bench",
    seq: seq++,
    rows: time.length,
    spans: [],
    status,
    schema,
  };
  store.apply(decode(content, [time.buffer, values.buffer]));
}

function sampled(from: number, count: number): Rows {
  const columns = DEVICES.length * METRICS.length;
  const time = Float64Array.from({ length: count }, (_, row) => (from + row) * INTERVAL);
  const values = Float32Array.from({ length: count * columns }, (_, index) => {
    const row = from + Math.floor(index / columns);
    return reading(METRICS[index % METRICS.length]!, row) * GIB;
  });
  return { time, values, columns };
}

/** In GiB: lines that never hold still, and parts of which half do. */
function reading(metric: string, row: number): number {
  const rise = Math.sin(row / 37) + 0.5 * ((row * 7919) % 101) * 0.01;
  const level: Record<string, number> = { weights: 1, buffers: 0.1, optimizer: 1.2, context: 0.6 };
  if (metric === "gradients") return 0.4 * Math.max(0, -Math.sin(row / 37));
  if (metric === "unattributed") return row % 50 < 40 ? 0.1 : Number.NaN;
  return level[metric] ?? 4 + LINES.indexOf(metric) * 0.3 + rise;
}

/** Resolves in the task in which the view has drawn again. */
function drawn(view: View, before = view.element.dataset.hfmemDraws): Promise<void> {
  return new Promise((resolve) => {
    const observer = new MutationObserver(() => {
      if (view.element.dataset.hfmemDraws === before) return;
      observer.disconnect();
      resolve();
    });
    observer.observe(view.element, { attributes: true });
  });
}

function painted(): Promise<void> {
  return new Promise((resolve) => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => resolve();
    channel.port2.postMessage(null);
  });
}

function median(values: number[]): number {
  return [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)]!;
}

Object.assign(globalThis, { prepare, measure });
