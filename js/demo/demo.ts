/** The chart with no Jupyter and no server: scripted runs through the same decoder. See index.html. */

import { openPage } from "../src/hosts/page.ts";
import { cpuCell, fineTune, type Script } from "./script.ts";
import { Sender } from "./sender.ts";

const HOSTILE = "<img src=x onerror=alert(1)> $\\href{javascript:alert(1)}{x}$ <b>&amp;</b> %{x} \"'`";

const SCENARIOS: Record<string, () => Script> = {
  "fine-tune": () =>
    fineTune({ label: "fine-tune", devices: 1, steps: 31, stepSeconds: 0.35, interval: 0.02 }),
  training: () => fineTune({ label: "fine-tune", devices: 1, steps: 100, epochs: 3, stepSeconds: 0.24 }),
  "nine devices": () => fineTune({ label: "fine-tune", devices: 9, steps: 31, stepSeconds: 0.35 }),
  "an hour": () => fineTune({ label: "pretrain", devices: 1, steps: 2000, stepSeconds: 1.8 }),
  "100,000 steps": () =>
    fineTune({ label: "pretrain", devices: 1, steps: 100_000, epochs: 8, stepSeconds: 0.4, interval: 3.7 }),
  "near capacity": () =>
    fineTune({ label: "tight", devices: 1, steps: 31, stepSeconds: 0.35, scale: 19.6, interval: 0.02 }),
  "nothing found": () =>
    fineTune({ label: "jax", devices: 1, steps: 31, stepSeconds: 0.35, interval: 0.02, parts: false }),
  "a cpu training": () =>
    fineTune({ label: "tiny-bert", devices: 1, host: true, steps: 24, stepSeconds: 0.4, scale: 0.12 }),
  "ten milliseconds": () => cpuCell(0.01),
  "a cpu cell": () => cpuCell(8),
  gap: () =>
    fineTune({ label: "gap", devices: 1, steps: 31, stepSeconds: 0.35, gap: [5.2, 7.6], interval: 0.02 }),
  "hostile label": () =>
    fineTune({ label: HOSTILE, devices: 1, steps: 31, stepSeconds: 0.35, interval: 0.02 }),
  "a leak over a budget": () => fineTune({ ...LEAK, devices: 1 }),
  "a leak on nine devices": () => fineTune({ ...LEAK, devices: 9, scale: 13, total: 143_771 * 2 ** 20 }),
};

const LEAK = {
  label: "fine-tune",
  steps: 31,
  stepSeconds: 0.35,
  epochs: 1,
  interval: 0.02,
  leak: 0.06,
  budget: 7.6,
};

const query = new URLSearchParams(location.hash.slice(1));
const scenario = query.get("scenario") ?? "fine-tune";
const theme = query.get("theme");
const speed = Number(query.get("speed") ?? 1);
const script = (SCENARIOS[scenario] ?? SCENARIOS["fine-tune"]!)();
const host = document.getElementById("chart")!;

if (theme) document.body.dataset.jpThemeLight = String(theme === "light");
if (query.has("width")) host.style.width = `${query.get("width")}px`;
// Within another page, such as the documentation's first, there is the chart alone.
if (window === window.top) addLinks();
const page = openPage(host);
play();

/** `upto` shows the run as it is after so many seconds, at once; else it plays. */
function play(): void {
  const sender = new Sender(script);
  const send = ({ content, buffers }: ReturnType<Sender["snapshot"]>) => page.receive(content, buffers);
  if (query.get("state") === "waiting") return;
  if (query.has("upto") || speed === 0) {
    const upto = Number(query.get("upto") ?? script.duration + 1);
    sender.advance(upto);
    const state = query.get("state") ?? (sender.isOver ? "stopped" : "running");
    send(
      sender.snapshot(state, state === "failed" ? "NVML was unloaded: driver/library version mismatch" : ""),
    );
    return;
  }
  send(sender.snapshot());
  let messages = 0;
  const timer = setInterval(() => {
    if (sender.isOver) {
      send(sender.snapshot("stopped"));
      clearInterval(timer);
    } else if (++messages % 20 === 0) send(sender.snapshot());
    else send(sender.advance(sender.time + 0.25 * speed));
  }, 250);
}

function addLinks(): void {
  const links = Object.keys(SCENARIOS).flatMap((name) =>
    ["light", "dark"].map((each) => {
      const link = document.createElement("a");
      link.href = `#${new URLSearchParams({ scenario: name, theme: each, speed: String(speed) })}`;
      link.textContent = `${name}, ${each}`;
      link.addEventListener("click", () => setTimeout(() => location.reload()));
      return link;
    }),
  );
  document.getElementById("links")!.append(...links);
}
