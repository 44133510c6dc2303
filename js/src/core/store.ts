/** All data of a run for the views: schema, rows, spans and status, also after lost messages. */

import type { Finding, Guide } from "./judged.ts";
import type { Message, RowsMessage, Schema, SnapshotMessage, Span, Status } from "./protocol.ts";
import { merged, type Ranks } from "./ranks.ts";
import { StepTable } from "./steps.ts";
import { Timeline } from "./timeline.ts";

const HELD_MESSAGES = 256;
/** Cells, epochs and evaluations; steps are not stored as spans. */
const MAX_SPANS = 20_000;

export class Store {
  run = "";
  schema: Schema | null = null;
  status: Status | null = null;
  timeline = new Timeline();
  steps = new StepTable();
  spans = new Map<number, Span>();
  findings: Finding[] = [];
  guides: Guide[] = [];
  /** The state of all ranks, in the overview of a distributed run. */
  ranks: Ranks | null = null;
  seq = -1;
  /** Milliseconds of the browser's clock at the last message; 0 before the first. */
  heardAt = 0;
  /** The longest of the recent pauses between two messages, in milliseconds. */
  pace = 0;
  unsupported: number | null = null;
  disconnected = false;

  /** The second after which data may be missing until a snapshot comes; null if nothing is missing. */
  private hole: number | null = null;
  /** Whether a coarse snapshot fills the gap for now. */
  private isBridged = false;
  private held: RowsMessage[] = [];
  private readonly finished = new Set<string>();
  private readonly listeners = new Set<() => void>();

  /** `onGap` is called once for each noticed loss. */
  constructor(
    private readonly clock: () => number,
    private readonly onGap: () => void = () => {},
  ) {}

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  apply(message: Message | null): void {
    if (message === null) return;
    if (message.kind === "unsupported") this.unsupported = message.protocol;
    else if (!this.finished.has(message.run)) this.accept(message);
    this.hear();
    for (const listener of this.listeners) listener();
  }

  disconnect(): void {
    this.disconnected = true;
    for (const listener of this.listeners) listener();
  }

  columnOf(device: string, metric: string): number {
    return this.schema?.series.findIndex((s) => s.device === device && s.metric === metric) ?? -1;
  }

  private accept(message: RowsMessage | SnapshotMessage): void {
    if (message.kind === "snapshot") this.acceptSnapshot(message);
    else if (message.run !== this.run) this.hold(message);
    else this.acceptRows(message);
  }

  private acceptSnapshot(message: SnapshotMessage): void {
    const isNew = message.run !== this.run;
    if (isNew) this.begin(message.run);
    else if (message.seq <= this.seq) return;
    if (isNew) this.hole = Number.NEGATIVE_INFINITY;
    else if (message.seq !== this.seq + 1) this.noteLoss();
    const from = message.coarse && this.isBridged ? null : this.hole;
    this.schema = message.schema;
    this.steps.adopt(message.schema.step_columns ?? []);
    this.take(message);
    if (from !== null) {
      this.timeline.replace(message.rows, from);
      this.steps.replace(message.steps, from);
    } else if (!message.coarse) this.append(message);
    this.isBridged = message.coarse;
    if (!message.coarse) this.hole = null;
    if (isNew) this.release();
  }

  private acceptRows(message: RowsMessage): void {
    if (message.seq <= this.seq) return;
    if (message.seq !== this.seq + 1) this.noteLoss();
    this.take(message);
    this.append(message);
  }

  private noteLoss(): void {
    this.isBridged = false;
    if (this.hole !== null) return;
    this.hole = this.timeline.last;
    this.onGap();
  }

  private append({ rows, steps }: RowsMessage | SnapshotMessage): void {
    this.timeline.append(rows);
    this.steps.append(steps);
  }

  private take(message: RowsMessage | SnapshotMessage): void {
    this.seq = message.seq;
    for (const span of message.spans) this.spans.set(span.id, span);
    if (message.status !== null) this.status = message.status;
    this.findings = message.findings ?? this.findings;
    this.guides = message.guides ?? this.guides;
    if (message.ranks !== null) {
      const isOutline = message.kind === "snapshot" && message.coarse;
      this.ranks = merged(this.ranks, message.ranks, isOutline);
    }
    if (this.spans.size > MAX_SPANS) this.forgetOldest();
  }

  private forgetOldest(): void {
    for (const [id, { stop }] of this.spans) {
      if (stop !== null) this.spans.delete(id);
      if (this.spans.size <= 0.9 * MAX_SPANS) return;
    }
  }

  private begin(run: string): void {
    if (this.run !== "") this.finished.add(this.run);
    this.run = run;
    this.seq = -1;
    this.hole = null;
    this.isBridged = false;
    this.status = null;
    this.spans.clear();
    this.findings = [];
    this.guides = [];
    this.ranks = null;
    this.timeline.clear();
    this.steps.clear();
    this.unsupported = null;
  }

  /** Rows have no meaning before the schema; they wait for the snapshot that has it. */
  private hold(message: RowsMessage): void {
    if (!this.held.some((held) => held.run === message.run)) this.onGap();
    this.held.push(message);
    if (this.held.length > HELD_MESSAGES) this.held.shift();
  }

  private release(): void {
    const held = this.held.filter((message) => message.run === this.run).sort((a, b) => a.seq - b.seq);
    this.held = [];
    for (const message of held) this.acceptRows(message);
  }

  private hear(): void {
    const now = this.clock();
    if (this.heardAt > 0) this.pace = Math.max(now - this.heardAt, 0.9 * this.pace);
    this.heardAt = now;
    this.disconnected = false;
  }
}
