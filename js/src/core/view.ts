/** One view of one store: header, chart, legend, and their updates. */

import { announce, prepareToAnnounce } from "./announcer.ts";
import { Chart } from "./chart.ts";
import { hasCloud } from "./cloud.ts";
import { type Condition, conditionOf } from "./condition.ts";
import { Controls } from "./controls.ts";
import { make, setAttribute, setText } from "./dom.ts";
import { Headline } from "./headline.ts";
import { followKeys } from "./keys.ts";
import { Legend, type Shown } from "./legend.ts";
import { Lens } from "./lens.ts";
import { MARKS, warningsOf } from "./notice.ts";
import { knowsParts } from "./parts.ts";
import { Progress } from "./progress.ts";
import type { Device } from "./protocol.ts";
import { RanksView } from "./ranksview.ts";
import { deviceToShow, peakShare, readDevice, shareUsed } from "./readings.ts";
import { namesIn } from "./scene.ts";
import { OVERVIEW } from "./series.ts";
import { defaultSettings, type Range, type Settings } from "./settings.ts";
import type { Store } from "./store.ts";
import { injectStyles } from "./styles.ts";
import { Summary } from "./summary.ts";
import { Tabs } from "./tabs.ts";
import { isOnDark, watchTheme } from "./theme.ts";

/** Numbers that change more often cannot be read. */
const BEAT = 500;
const BEATS_TO_SUMMARY = 20;
const SLOW_NEWS = 750;
/** The least share of the capacity for which percent is offered. */
const LEAST_SHARE = 0.01;

export interface ViewOptions {
  signal: AbortSignal;
  /** Called on every beat while a person may be looking. */
  onSeen?: () => void;
  clock?: () => number;
  /** A person's choices in an earlier view. */
  settings?: Settings;
}

export class View {
  readonly element = make("div", "root", { role: "group", "aria-label": "memory" });
  private readonly settings: Settings;
  private readonly chart: Chart;
  private readonly tabs = new Tabs((key) => this.pickDevice(key));
  private readonly title = make("span", "title");
  private readonly condition = make("span", "condition");
  private readonly placeholder = make("div", "placeholder");
  private readonly headline = new Headline();
  private readonly controls: Controls;
  private readonly legend: Legend;
  private readonly progress = new Progress();
  private readonly lens: Lens;
  private readonly ranks = new RanksView();
  private readonly summary = new Summary();
  private readonly clock: () => number;
  private readonly onSeen: () => void;
  private beats = 0;
  private fault: Condition | null = null;
  private wasRunning = false;

  constructor(
    host: HTMLElement,
    private readonly store: Store,
    { signal, onSeen = () => {}, clock = Date.now, settings = defaultSettings() }: ViewOptions,
  ) {
    this.clock = clock;
    this.onSeen = onSeen;
    this.settings = settings;
    const changed = () => this.show();
    this.chart = new Chart(
      store,
      this.settings,
      {
        onZoom: (range) => this.zoom(range),
        onDraw: (milliseconds) => this.report(milliseconds),
        onFault: (error) => this.blame(error),
      },
      signal,
    );
    this.controls = new Controls(this.settings, changed);
    this.legend = new Legend(this.settings, changed);
    this.lens = new Lens(this.settings, changed);
    this.build(host);
    this.live(host, signal);
    this.show();
  }

  private build(host: HTMLElement): void {
    injectStyles(host);
    prepareToAnnounce();
    setAttribute(this.chart.element, "role", "img");
    setAttribute(this.chart.element, "aria-label", "memory, no data yet");
    this.chart.element.append(this.placeholder);
    const names = make("div", "names", {}, [this.tabs.element, this.title]);
    const bar = make("div", "bar", {}, [names, this.condition, this.controls.element]);
    const foot = make(
      "div",
      "foot",
      {},
      [this.legend, this.progress, this.lens].map(({ element }) => element),
    );
    const parts = [
      bar,
      this.headline.element,
      this.chart.element,
      foot,
      this.ranks.element,
      this.summary.element,
    ];
    this.element.append(...parts);
    host.append(this.element);
  }

  private live(host: HTMLElement, signal: AbortSignal): void {
    const dress = () => this.element.classList.toggle("hfmem-on-dark", isOnDark(host));
    dress();
    const unsubscribe = this.store.subscribe(() => this.follow());
    const timer = setInterval(() => this.beat(), BEAT);
    watchTheme(() => {
      dress();
      this.chart.redraw();
    }, signal);
    followKeys(this.element, () => this.controls.resetZoom(), signal);
    this.element.addEventListener("pointerenter", () => this.glance(), { signal });
    signal.addEventListener("abort", () => {
      unsubscribe();
      clearInterval(timer);
      this.element.remove();
    });
  }

  private deviceToShow(): Device | null {
    const { store, settings } = this;
    const named = (wanted: string) => store.schema?.devices.find(({ key }) => key === wanted);
    const kept = named(settings.picked) ?? (settings.paused ? named(settings.device) : undefined);
    return kept ?? deviceToShow(store, settings.device, warningsOf(store)[0]?.device ?? null);
  }

  /** The first snapshot, and a run on other devices, are shown at once; later updates wait for their turn. */
  private follow(): void {
    const device = this.deviceToShow();
    if (device !== null && device.key !== this.settings.device) this.show();
    else this.chart.refresh();
    // The chart of a cell is removed when its run ends.
    if (this.wasRunning && this.store.status?.state !== "running") this.write();
  }

  private beat(): void {
    if (!this.chart.visible) return;
    this.write();
    if (this.beats++ % BEATS_TO_SUMMARY === 0) this.summarize();
  }

  /**
   * Reports that somebody looks, but only if updates come slowly: each message to the kernel makes JupyterLab's
   * indicator show "Idle" until the cell's next message.
   */
  private glance(): void {
    const pace = Math.max(this.store.pace, this.clock() - this.store.heardAt);
    if (pace > SLOW_NEWS) this.onSeen();
  }

  /** A person changed a setting, or the first data came: update everything at once. */
  private show(): void {
    this.write();
    this.summarize();
    this.chart.redraw();
  }

  private summarize(): void {
    this.summary.update(this.store, this.chart.element);
  }

  private write(): void {
    const { store, settings } = this;
    const condition = this.fault ?? conditionOf(store, this.clock());
    const { kind, text } = condition;
    this.announce(condition);
    setAttribute(this.element, "data-hfmem-condition", kind);
    setText(this.condition, store.schema === null ? "" : text);
    setAttribute(this.condition, "title", text);
    this.condition.classList.toggle("hfmem-bad", kind === "failed" || kind === "silent");
    setText(this.placeholder, text);
    this.placeholder.hidden = store.schema !== null && kind !== "unsupported";
    this.element.classList.toggle("hfmem-blank", !this.placeholder.hidden);
    const devices = store.schema?.devices ?? [];
    const device = this.deviceToShow();
    if (device === null) return;
    settings.device = device.key;
    this.tabs.element.hidden = devices.length < 2;
    this.title.hidden = devices.length > 1;
    setText(this.title, [store.schema?.label, device.name].filter(Boolean).join(" · "));
    setAttribute(this.title, "title", this.title.textContent ?? "");
    this.tabs.update(devices, device.key, (each) => shareUsed(store, each));
    const readings = readDevice(store, device);
    this.headline.update(store, readings, settings.percent);
    this.controls.update({
      elapsed: store.status?.elapsed ?? 0,
      isOverTime: !this.isCloud,
      hasPercent: settings.percent ? device.total !== null : peakShare(readings) >= LEAST_SHARE,
    });
    this.nameSeries();
    this.progress.update(store);
    this.lens.update(hasCloud(store, device.key));
    this.compareRanks();
  }

  /** Announces only runs that went on while they were shown; an old run can be read. */
  private announce({ kind, text }: Condition): void {
    const { run, schema } = this.store;
    const lead = schema?.label ? `${schema.label}: ` : "";
    if (kind !== "running") {
      if (this.wasRunning) announce(run, kind, lead + text);
      return;
    }
    this.wasRunning = true;
    for (const { kind: what, span, device, severity, title } of warningsOf(this.store).slice(0, 1)) {
      announce(run, `${what} ${span} ${device}`, `${lead}${MARKS[severity][1]}: ${title}`);
    }
  }

  private compareRanks(): void {
    const { store, settings, chart } = this;
    const ranks = settings.device === OVERVIEW ? store.ranks : null;
    this.ranks.update(ranks, chart.scene, store.status?.elapsed ?? 0);
  }

  private nameSeries(): void {
    this.legend.update(this.store, this.shown(this.settings.device), this.isCloud);
  }

  private get isCloud(): boolean {
    return this.settings.lens === "tokens" && hasCloud(this.store, this.settings.device);
  }

  private shown(device: string): Shown | null {
    const { scene } = this.chart;
    return scene && { ...namesIn(scene), knowsParts: knowsParts(this.store, device) };
  }

  private zoom(range: Range | null): void {
    this.settings.zoom = range;
    this.show();
  }

  private pickDevice(key: string): void {
    this.settings.picked = key;
    this.show();
  }

  private blame(error: unknown): void {
    this.fault = { kind: "failed", text: `the chart cannot be drawn (${error})` };
    this.write();
  }

  /** For tests and benches. */
  private report(milliseconds: number): void {
    this.fault = null;
    // The first drawing may have series with new names.
    this.nameSeries();
    this.compareRanks();
    const { dataset } = this.element;
    dataset.hfmemDraws = String(this.chart.draws);
    dataset.hfmemRows = String(this.store.timeline.length);
    dataset.hfmemSeq = String(this.store.seq);
    dataset.hfmemPoints = String(this.chart.points);
    dataset.hfmemDrawMs = milliseconds.toFixed(1);
  }
}
