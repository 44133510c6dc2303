/** The JupyterLab plugin: the services that it takes, and the parts that it adds. */

import { make } from "../../core/dom.ts";
import styles from "../../styles/panel.css";
import still from "../../styles/still.css";
import { chartUrl } from "../address.ts";
import { wantedInterval, wantInterval } from "../interval.ts";
import { takesMagic, toggleMagic } from "./cell_magic.ts";
import { ICON } from "./icon.ts";
import type {
  Application,
  CommandPalette,
  LayoutRestorer,
  NotebookTracker,
  Plugin,
  SettingRegistry,
  StatusBar,
  Translator,
  Widget,
} from "./jupyterlab.ts";
import { Notebooks } from "./notebooks.ts";
import { Opener } from "./opener.ts";
import { type ChartParts, MemoryPanel } from "./panel.ts";
import { Preferences } from "./preferences.ts";
import { type ShareScope, shared } from "./shared.ts";
import { StatusItem } from "./status_item.ts";
import { __, speakWith } from "./translate.ts";
import { NARROWEST, resize, widthIn } from "./width.ts";

const ID = "hfmem-widget:plugin";
const PANEL = "hfmem-panel";
const RANK = 900;
const SHOW = "hfmem-widget:show";
const CLEAR = "hfmem-widget:clear";
/** The toolbar's button in labextension/schema/plugin.json runs this. */
const WATCH_CELL = "hfmem-widget:watch-cell";
/** The kernel's default, and the one in that file. */
const USUAL_INTERVAL = 0.1;

/** Every service is optional: Notebook 7 has no status bar, and some of its pages have no notebook. */
export async function definePlugin(scope: ShareScope): Promise<Plugin> {
  const [application, apputils, notebook, settings, statusbar, translation, ui, lumino] = await Promise.all([
    shared(scope, "@jupyterlab/application"),
    shared(scope, "@jupyterlab/apputils"),
    shared(scope, "@jupyterlab/notebook"),
    shared(scope, "@jupyterlab/settingregistry"),
    shared(scope, "@jupyterlab/statusbar"),
    shared(scope, "@jupyterlab/translation"),
    shared(scope, "@jupyterlab/ui-components"),
    shared(scope, "@lumino/widgets"),
  ]);
  // A token without a provider: JupyterLab passes null in its place among the services.
  const absent = { name: "hfmem-widget:absent" };
  return {
    id: ID,
    description: "Shows the memory of the active notebook, live.",
    autoStart: true,
    requires: [],
    optional: [
      notebook?.INotebookTracker ?? absent,
      apputils?.ICommandPalette ?? absent,
      application?.ILayoutRestorer ?? absent,
      settings?.ISettingRegistry ?? absent,
      statusbar?.IStatusBar ?? absent,
      translation?.ITranslator ?? absent,
    ],
    activate(app, tracker, palette, restorer, registry, bar, translator) {
      // Outputs have their style also on pages without a notebook, such as Voilà's.
      addStyles(still);
      if (!tracker || !lumino || !ui) return;
      speakWith(translator as Translator | null);
      const makeWidget = (node: HTMLElement, id: string) => {
        const widget = new lumino.Widget({ node });
        widget.id = id;
        return widget;
      };
      const notebooks = new Notebooks(tracker as NotebookTracker, sessionStorage);
      notebook?.NotebookActions?.executionScheduled?.connect((_, { notebook: { parent }, cell }) =>
        notebooks.prepare(parent, cell),
      );
      const icon = new ui.LabIcon({ name: "hfmem-widget:memory", svgstr: ICON });
      addStyles(styles);
      const panel = new MemoryPanel(notebooks, importChart, localStorage);
      const widget = addPanel(app, makeWidget, panel, icon, restorer as LayoutRestorer | null);
      const place = new Place(app, notebooks, widget);
      const show = () => place.show();
      addCommands(app, notebooks, show, palette as CommandPalette | null);
      addWatchCell(app, tracker as NotebookTracker, icon, palette as CommandPalette | null);
      addStatus(makeWidget, notebooks, show, bar as StatusBar | null);
      void Preferences.load(ID, registry as SettingRegistry | null).then((preferences) => {
        panel.hint.greet(() => preferences.isOn("showHint"), preferences.switchFor("showHint"));
        followInterval(preferences);
        return openWithWatch(app, notebooks, place, panel, preferences);
      });
    },
  };
}

function addStyles(text: string): void {
  document.head.append(make("style", "", { "data-hfmem-panel": "" }, [text]));
}

/** The panel's place beside the notebook in front. */
class Place {
  constructor(
    private readonly app: Application,
    private readonly notebooks: Notebooks,
    private readonly widget: Widget,
  ) {}

  /** Whether the panel may open by itself: not if a person has something else open in that side bar. */
  get isFree(): boolean {
    return this.taken === 0 && widthIn(this.room) !== null;
  }

  show(): void {
    const { room, widget } = this;
    this.app.shell.activateById(PANEL);
    // A side bar of this width was not widened by anybody.
    if (widget.node.offsetWidth <= NARROWEST) resize(widget, widthIn(room) ?? NARROWEST);
  }

  private get room(): number {
    return (this.notebooks.front?.notebook.node.offsetWidth ?? 0) + this.taken;
  }

  /** The width of the side bar; 0 while it is closed. */
  private get taken(): number {
    return this.widget.parent?.node.offsetWidth ?? 0;
  }
}

type MakeWidget = (node: HTMLElement, id: string) => Widget;

function addPanel(
  app: Application,
  makeWidget: MakeWidget,
  panel: MemoryPanel,
  icon: unknown,
  restorer: LayoutRestorer | null,
): Widget {
  const widget = makeWidget(panel.element, PANEL);
  widget.title.caption = __("Memory");
  widget.title.icon = icon;
  widget.disposed.connect(() => panel.dispose());
  app.shell.add(widget, "right", { rank: RANK });
  restorer?.add(widget, PANEL);
  return widget;
}

function addCommands(
  app: Application,
  notebooks: Notebooks,
  show: () => void,
  palette: CommandPalette | null,
): void {
  app.commands.addCommand(SHOW, {
    label: __("Show Memory Panel"),
    caption: __("Show the memory of the active notebook"),
    execute: show,
  });
  app.commands.addCommand(CLEAR, {
    label: __("Clear Memory History"),
    caption: __("Forget the finished runs of the active notebook"),
    isEnabled: () => notebooks.front?.runs.isEmpty === false,
    execute: () => notebooks.front?.runs.clear(),
  });
  for (const command of [SHOW, CLEAR]) palette?.addItem({ command, category: __("Memory") });
}

function addWatchCell(
  app: Application,
  tracker: NotebookTracker,
  icon: unknown,
  palette: CommandPalette | null,
): void {
  app.commands.addCommand(WATCH_CELL, {
    label: __("Watch the Memory of the Selected Cell"),
    caption: __("Put %1 above the selected cell, or take it away", "%%memwatch"),
    icon,
    isEnabled: () => takesMagic(tracker.activeCell),
    execute: () => {
      const { activeCell } = tracker;
      if (takesMagic(activeCell)) toggleMagic(activeCell);
    },
  });
  tracker.activeCellChanged.connect(() => app.commands.notifyCommandChanged(WATCH_CELL));
  palette?.addItem({ command: WATCH_CELL, category: __("Memory") });
}

function addStatus(
  makeWidget: MakeWidget,
  notebooks: Notebooks,
  show: () => void,
  bar: StatusBar | null,
): void {
  if (bar === null) return;
  const status = new StatusItem(notebooks, show, () => item.setHidden(!status.isActive));
  const item = makeWidget(status.element, "hfmem-status");
  item.disposed.connect(() => status.dispose());
  bar.registerStatusItem(ID, { item, align: "right", rank: RANK, isActive: () => status.isActive });
}

/** The kernel's default is not sent, unless another interval was set before on this page. */
function followInterval(preferences: Preferences): void {
  const follow = () => {
    const { interval } = preferences;
    if (typeof interval !== "number") return;
    if (interval !== USUAL_INTERVAL || wantedInterval() !== undefined) wantInterval(interval);
  };
  follow();
  preferences.onChange(follow);
}

/** Lets the panel open by itself, unless a setting turns that off. */
async function openWithWatch(
  app: Application,
  notebooks: Notebooks,
  place: Place,
  panel: MemoryPanel,
  preferences: Preferences,
): Promise<void> {
  // Restoring the layout would close a panel that opened before.
  await app.restored;
  const open = () => {
    place.show();
    panel.note.show(preferences.switchFor("openWithWatch"));
  };
  new Opener(notebooks, open, () => preferences.isOn("openWithWatch") && place.isFree);
}

async function importChart(): Promise<ChartParts> {
  const url = chartUrl();
  if (url === null) throw new Error("no Jupyter server serves this page");
  return import(url);
}
