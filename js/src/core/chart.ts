/** One Plotly figure: redrawn a few times a second at most, sized by its container, read by the pointer. */

import { type Cloud, composeCloud, hasCloud, pointAt, readPoint } from "./cloud.ts";
import { toCloudFigure } from "./cloudfigure.ts";
import { composeScene, type Hold } from "./compose.ts";
import { make, textWidth } from "./dom.ts";
import { toFigure } from "./figure.ts";
import { barAt, readBar, readTime } from "./hover.ts";
import { Pacer } from "./pacer.ts";
import { draw, type Figure, type GraphDiv, purge } from "./plotly.ts";
import { LABEL_PIXELS, MARGIN, type Scene } from "./scene.ts";
import type { Range, Settings } from "./settings.ts";
import type { Store } from "./store.ts";
import { readTheme, type Theme } from "./theme.ts";
import { Tip } from "./tip.ts";

/** 2.5 redraws a second. */
const PAUSE_BETWEEN_DRAWS = 400;
const CLICK_PIXELS = 4;
const LEAST_ZOOM_SECONDS = 1e-4;

export interface ChartEvents {
  onZoom(range: Range | null): void;
  onDraw(milliseconds: number): void;
  onFault(error: unknown): void;
}

export class Chart {
  readonly element = make("div", "chart");
  /** The scene or the cloud that was drawn last. */
  scene: Scene | null = null;
  cloud: Cloud | null = null;
  draws = 0;

  private readonly plot: GraphDiv = make("div", "plot");
  private readonly tip = new Tip();
  private readonly pacer: Pacer;
  private readonly hold: Hold = { key: "", top: 0, end: 0, lanes: 0 };
  private pressed: { x: number; y: number } | null = null;
  private frozen: number | null = null;
  private inSight = true;
  /** Whether data came while the chart was not visible. */
  private isBehind = false;
  private drawnSize = "";
  private readonly sizes = new ResizeObserver(() => {
    if (this.size !== this.drawnSize) this.pacer.urge();
  });

  constructor(
    private readonly store: Store,
    private readonly settings: Settings,
    private readonly events: ChartEvents,
    private readonly signal: AbortSignal,
  ) {
    this.pacer = new Pacer(() => this.tryToDraw(), PAUSE_BETWEEN_DRAWS, signal);
    this.element.append(this.plot, this.tip.rule, this.tip.element);
    this.listen();
    signal.addEventListener("abort", () => purge(this.plot));
  }

  /** The points of all drawn series together. */
  get points(): number {
    if (this.cloud !== null) return 2 * this.cloud.points.length;
    const { x, lines, bands } = this.scene ?? { x: [], lines: [], bands: [] };
    return x.length * (lines.length + bands.length);
  }

  get visible(): boolean {
    return this.inSight && document.visibilityState === "visible";
  }

  /** New data came: draw after the usual pause. */
  refresh(): void {
    if (this.settings.paused) return;
    if (this.visible) this.pacer.request();
    else this.isBehind = true;
  }

  /** The chart is visible again: draw if data came meanwhile. */
  private catchUp(): void {
    if (this.isBehind) this.refresh();
  }

  /** A person changed a setting: draw now. */
  redraw(): void {
    this.frozen = this.settings.paused ? (this.frozen ?? this.now()) : null;
    this.pacer.urge();
  }

  private get size(): string {
    return `${this.element.clientWidth} ${this.element.clientHeight}`;
  }

  private now(): number {
    const { status, timeline } = this.store;
    return this.frozen ?? Math.max(0, status?.elapsed ?? 0, timeline.last);
  }

  /** A fault of the picture is reported beside it, and is not an error of the page. */
  private tryToDraw(): void {
    try {
      this.draw();
    } catch (error) {
      this.events.onFault(error);
    }
  }

  private draw(): void {
    this.drawnSize = "";
    // A redraw during a drag would remove the selection under the pointer; the release asks for one.
    if (this.store.schema === null || this.pressed !== null) return;
    const width = Math.floor(this.element.clientWidth) - MARGIN.left - MARGIN.right;
    const height = Math.floor(this.element.clientHeight) - MARGIN.top - MARGIN.bottom;
    this.drawnSize = this.size;
    // A page that is put together anew may take the place away for a moment. Observed anew, the size after
    // that is told, though it is the one that was told before.
    this.sizes.unobserve(this.element);
    this.sizes.observe(this.element);
    if (width < 40 || height < 40) return;
    const started = performance.now();
    draw(this.plot, this.compose(width, height, readTheme(this.element))).catch(this.events.onFault);
    this.isBehind = false;
    if (this.draws++ === 0) this.followPlotly();
    this.events.onDraw(performance.now() - started);
  }

  private compose(width: number, height: number, theme: Theme): Figure {
    const { store, settings } = this;
    const revision = this.draws + 1;
    const measure = (text: string, pixels: number, weight?: number) =>
      textWidth(text, pixels, theme.font, weight);
    const label = (text: string) => measure(text, LABEL_PIXELS, 600);
    if (settings.lens === "tokens" && hasCloud(store, settings.device)) {
      this.cloud = composeCloud(store, settings, width, height);
      return toCloudFigure(this.cloud, theme, revision, label);
    }
    this.cloud = null;
    const input = { store, settings, now: this.now(), width, height, textWidth: label };
    this.scene = composeScene(input, this.hold);
    return toFigure(this.scene, theme, revision, measure);
  }

  private listen(): void {
    const { signal } = this;
    this.sizes.observe(this.element);
    const sight = new IntersectionObserver((entries) => {
      this.inSight = entries.at(-1)?.isIntersecting ?? true;
      this.catchUp();
    });
    sight.observe(this.element);
    signal.addEventListener("abort", () => {
      this.sizes.disconnect();
      sight.disconnect();
    });
    document.addEventListener("visibilitychange", () => this.catchUp(), { signal });
    this.plot.addEventListener("pointermove", (event) => this.read(event), { signal });
    this.plot.addEventListener("pointerleave", () => this.tip.hide(), { signal });
    this.plot.addEventListener("pointerdown", (event) => this.press(event), { signal });
    // While dragging, Plotly covers the page, so the release is caught anywhere, whoever else handles it.
    const anywhere = { capture: true, signal };
    globalThis.addEventListener("pointerup", (event) => this.release(event), anywhere);
    globalThis.addEventListener("pointercancel", () => this.unpress(), anywhere);
  }

  private position(event: MouseEvent): { x: number; y: number } {
    const box = this.plot.getBoundingClientRect();
    return { x: event.clientX - box.left - MARGIN.left, y: event.clientY - box.top - MARGIN.top };
  }

  private read(event: PointerEvent): void {
    const { scene, cloud } = this;
    const { x, y } = this.position(event);
    if (cloud !== null) {
      this.readCloud(cloud, x, y);
      return;
    }
    if (!scene || this.pressed || x < 0 || x > scene.width || y < 0 || y > scene.height) {
      this.tip.hide();
      return;
    }
    const bar = barAt(scene, x, y);
    const reading = bar
      ? readBar(bar, scene)
      : y < scene.lanesHeight
        ? null
        : readTime(this.store, this.settings.device, scene, x);
    this.plot.classList.toggle("hfmem-clickable", bar !== null);
    if (reading) this.tip.show(reading, x, y, scene, bar === null);
    else this.tip.hide();
  }

  private readCloud(cloud: Cloud, x: number, y: number): void {
    const point = pointAt(cloud, x, y);
    this.plot.classList.remove("hfmem-clickable");
    if (point === null) this.tip.hide();
    else this.tip.show(readPoint(point), x, y, cloud, false);
  }

  private press(event: PointerEvent): void {
    // The browser's own menu may take the release of another button.
    if (event.button !== 0) return;
    this.pressed = this.position(event);
    this.tip.hide();
  }

  private release(event: PointerEvent): void {
    const { pressed, scene, cloud } = this;
    if (pressed === null) return;
    this.unpress();
    const { x, y } = this.position(event);
    if (
      !scene ||
      cloud !== null ||
      Math.abs(x - pressed.x) > CLICK_PIXELS ||
      Math.abs(y - pressed.y) > CLICK_PIXELS
    )
      return;
    const bar = barAt(scene, x, y);
    if (bar) this.events.onZoom([bar.start, Math.max(bar.stop, bar.start + LEAST_ZOOM_SECONDS)]);
  }

  private unpress(): void {
    if (this.pressed === null) return;
    this.pressed = null;
    this.refresh();
  }

  private followPlotly(): void {
    this.plot.on?.("plotly_relayout", (change) => this.followZoom(change));
    // The second press hits Plotly's cover, so the plot itself never gets `dblclick`.
    this.plot.on?.("plotly_doubleclick", () => this.events.onZoom(null));
  }

  /** Plotly has changed its axis: store the range, so that the next drawing has points for it. */
  private followZoom(change: Record<string, unknown>): void {
    const start = Number(change["xaxis.range[0]"]);
    const stop = Number(change["xaxis.range[1]"]);
    if (!(stop - start > LEAST_ZOOM_SECONDS)) return;
    this.events.onZoom([start, stop]);
  }
}
