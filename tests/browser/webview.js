// The page's side of webview.py: what lies between VS Code's widget manager and a kernel, and its renderers.
const sent = [];
let hasSent = false;
const places = new Map();
const widgets = new Map();
const bytes = (text) => Uint8Array.from(atob(text), (it) => it.charCodeAt(0)).buffer;
const blob = (text) => URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
const VIEW = "application/vnd.jupyter.widget-view+json";
const GROUND = "cell-output-ipywidget-background";
const PLOTLY = "application/vnd.plotly.v1+json";

// Managers connect to signals of the kernel; none of them is ever sent here.
const signal = { connect() {}, disconnect() {} };
const comms = new Map();
const targets = new Map();

class Comm {
  constructor(targetName, commId) {
    Object.assign(this, { targetName, commId });
    comms.set(commId, this);
  }
  send(data) {
    sent.push([this.commId, data]);
    hasSent = true;
    return { msg: { header: { msg_id: "" } }, done: Promise.resolve() };
  }
  open() {}
  close() {}
  dispose() {}
}

const kernel = {
  ...{ username: "", clientId: "", id: "", name: "python3", status: "busy", model: {}, isDisposed: false },
  ...{ statusChanged: signal, connectionStatusChanged: signal, iopubMessage: signal, anyMessage: signal },
  ...{ unhandledMessage: signal, pendingInput: signal, disposed: signal },
  registerCommTarget: (name, opened) => targets.set(name, opened),
  removeCommTarget: (name) => targets.delete(name),
  registerMessageHook() {},
  removeMessageHook() {},
  createComm: (name, id) => new Comm(name, id),
  requestCommInfo: async () => ({ content: { comms: {} } }),
};

let manager;

/** As the extension's preloads do: the manager of the kernel's ipywidgets, and where its modules are. */
async function preload(version, source, anywidget) {
  requirejs.config({ paths: { anywidget: blob(anywidget) } });
  (await import(blob(source))).activate();
  window[`vscIPyWidgets${version}`].load();
  const fail = (name, module, _version, error) => console.error(`${module}.${name}: ${error}`);
  const loader = {
    widgetsRegisteredInRequireJs: new Set(["anywidget"]),
    errorHandler: fail,
    successHandler() {},
    loadWidgetScript: async () => {},
  };
  manager = new window.vscIPyWidgets.WidgetManager(kernel, document.body, loader, () => {});
}

function pass(kind, message, buffers) {
  const { comm_id, target_name } = message.content;
  const whole = { ...message, buffers: buffers.map(bytes), parent_header: {}, header: { msg_type: kind } };
  if (kind === "comm_open") targets.get(target_name)?.(new Comm(target_name, comm_id), whole);
  else if (kind === "comm_msg") comms.get(comm_id)?.onMsg?.(whole);
  else comms.get(comm_id)?.onClose?.(whole);
}

/** An output's element, in the elements that VS Code has around it. */
function makePlace() {
  const container = document.getElementById("container");
  const names = ["cell_container", "output_container", "output", "output-element"];
  return names.reduce((outer, name) => {
    const inner = outer.appendChild(document.createElement("div"));
    inner.className = name;
    return inner;
  }, container);
}

async function show(id, data) {
  const place = places.get(id) ?? makePlace();
  places.set(id, place);
  widgets.get(place)?.dispose();
  place.replaceChildren();
  place.classList.remove(GROUND);
  if (data[VIEW]) await showWidget(place, data[VIEW]);
  else if (data[PLOTLY] && window.Plotly) {
    const { data: traces, layout, config } = data[PLOTLY];
    await Plotly.newPlot(place, traces, layout, config);
  } else if (data["text/html"]) place.innerHTML = data["text/html"];
  else place.appendChild(document.createElement("pre")).textContent = data["text/plain"] ?? "";
}

/** As src/webviews/webview-side/ipywidgets of vscode-jupyter does it. */
async function showWidget(place, view) {
  place.classList.add(GROUND);
  const inner = place.appendChild(document.createElement("div"));
  inner.className = GROUND;
  inner.appendChild(document.createElement("div")).className = "cell-output";
  const model = await manager.get_model(view.model_id);
  const made = await manager.create_view(model, { el: inner });
  widgets.set(place, await manager.display_view(view, made, { node: inner }));
}

/** As VS Code's own page does it, on start and at every change of the theme. */
function dress({ kind, variables }) {
  const { body } = document;
  body.className = kind === "vscode-high-contrast-light" ? `${kind} vscode-high-contrast` : kind;
  body.dataset.vscodeThemeKind = kind;
  const { style } = document.documentElement;
  for (const name of [...style].filter((it) => it.startsWith("--vscode-"))) style.removeProperty(name);
  for (const [name, value] of Object.entries(variables)) style.setProperty(name, value);
}
