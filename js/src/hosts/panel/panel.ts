/** The panel at the right: the chart of the notebook in front, its open spans, and its last cells. */

import { isBetweenCells } from "../../core/condition.ts";
import { make, setText } from "../../core/dom.ts";
import type { Store } from "../../core/store.ts";
import type { View } from "../../core/view.ts";
import { SEEN } from "../seen.ts";
import { Beat } from "./beat.ts";
import { CellTable } from "./cell_table.ts";
import { Hint } from "./hint.ts";
import { Note } from "./note.ts";
import type { Entry, Notebooks } from "./notebooks.ts";
import { openPath } from "./path.ts";
import { PathLine } from "./path_line.ts";
import { __ } from "./translate.ts";
import { ICONS, NARROWEST } from "./width.ts";

/** Numbers that change more often cannot be read. */
const BEAT = 500;

/** The used exports of chart.js. */
export interface ChartParts {
  View: typeof View;
}

interface Shown {
  store: Store;
  life: AbortController;
}

export class MemoryPanel {
  readonly element = make("div", "panel", {
    role: "region",
    "aria-label": __("Memory"),
    // Inline, because JupyterLab's own rule for the contents of its side bars is stronger than a class.
    style: `min-width: min(${NARROWEST}px, 100vw - ${ICONS}px)`,
  });

  /** How to keep the panel closed. */
  readonly note: Note;

  /** How to begin. */
  readonly hint = new Hint();

  private readonly chart = make("div", "panel-chart");
  private readonly path = new PathLine();
  private readonly table = new CellTable();
  private readonly content: HTMLElement;
  private readonly beat = new Beat(() => this.update(), BEAT);
  private readonly sight: IntersectionObserver;
  private readonly unsubscribe: () => void;
  private parts: ChartParts | null = null;
  private isLoading = false;
  private inSight = false;
  private front: Entry | null = null;
  private shown: Shown | null = null;
  private isKnown = false;

  constructor(
    private readonly notebooks: Notebooks,
    private readonly load: () => Promise<ChartParts>,
    storage: Storage,
  ) {
    this.note = new Note(storage);
    const parts = [this.chart, this.path.element, this.table.element, this.note.element];
    this.content = make("div", "panel-content", {}, parts);
    this.element.append(this.hint.element, this.content);
    // The table has the figures of the device whose tab was picked.
    for (const kind of ["click", "keydown"]) this.chart.addEventListener(kind, () => this.beat.now());
    this.sight = new IntersectionObserver((entries) => {
      this.inSight = entries.at(-1)?.isIntersecting ?? false;
      if (this.inSight) this.beat.now();
    });
    this.sight.observe(this.element);
    this.unsubscribe = notebooks.subscribe(() => this.follow());
    this.update();
  }

  dispose(): void {
    this.unsubscribe();
    this.sight.disconnect();
    this.beat.stop();
    this.draw(null, null);
  }

  /** Another notebook, another run and its first data are shown at once; later updates wait for their turn. */
  private follow(): void {
    const { front } = this.notebooks;
    if (front?.runs.isEmpty === false) this.hint.end();
    const store = front?.runs.current ?? null;
    const isSame = front === this.front && store === (this.shown?.store ?? null);
    if (isSame && this.isKnown === isKnown(store)) this.beat.ask();
    else this.beat.now();
  }

  private update(): void {
    const { front } = this.notebooks;
    this.front = front;
    if (!this.inSight) return;
    const store = front?.runs.current ?? null;
    this.isKnown = isKnown(store);
    const isWatched = front !== null && !front.runs.isEmpty;
    this.hint.element.hidden = isWatched;
    this.content.hidden = !isWatched;
    if (!isWatched) this.hint.update(front !== null);
    this.draw(front, store);
    if (front === null || store === null) return;
    // The chart above says so.
    const isIdle = !this.isKnown || (store.status?.state === "running" && isBetweenCells(store));
    this.path.update(isIdle ? null : openPath(store));
    this.table.update(front.runs.cells, front.settings.device || (store.schema?.devices[0]?.key ?? ""));
  }

  private draw(front: Entry | null, store: Store | null): void {
    if (this.shown?.store === store) return;
    this.shown?.life.abort();
    this.shown = null;
    if (front === null || store === null) return;
    if (this.parts === null) {
      this.fetch();
      return;
    }
    const { settings } = front;
    Object.assign(settings, { device: "", zoom: null, paused: false });
    this.shown = { store, life: new AbortController() };
    const onSeen = () => dispatchEvent(new CustomEvent(SEEN, { detail: store.run }));
    new this.parts.View(this.chart, store, { signal: this.shown.life.signal, settings, onSeen });
  }

  private fetch(): void {
    if (this.isLoading) return;
    this.isLoading = true;
    this.load().then(
      (parts) => {
        this.parts = parts;
        this.chart.replaceChildren();
        this.beat.now();
      },
      (error) => {
        // Requested again when the panel is next visible.
        this.isLoading = false;
        setText(this.chart, __("The memory chart could not be loaded (%1).", error));
      },
    );
  }
}

function isKnown(store: Store | null): boolean {
  return store !== null && store.schema !== null;
}
