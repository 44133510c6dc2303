/** The chart of a report, a page that carries its run and chart.js; `features/report/page.py` writes that page. */

import { inflate } from "../core/inflate.ts";
import { drawAllMoments } from "../core/moments.ts";
import { decode } from "../core/protocol.ts";
import { defaultSettings } from "../core/settings.ts";
import { Store } from "../core/store.ts";
import { View } from "../core/view.ts";
import { drawAllWhatIfs } from "../core/whatif.ts";

/** No message follows the page's own, so no silence is too long. */
const clock = () => 0;

/** A frame of the page: Base64 of a gzipped line of JSON, followed by the buffers. */
export async function unpack(text: string): Promise<{ content: unknown; buffers: Uint8Array[] }> {
  const bytes = await inflate(text);
  let from = bytes.indexOf(10) + 1;
  const { content, sizes } = JSON.parse(new TextDecoder().decode(bytes.subarray(0, from)));
  const buffers = (sizes as number[]).map((size) => {
    from += size;
    return bytes.subarray(from - size, from);
  });
  return { content, buffers };
}

/** Draws the live chart in `host`; the page's root gets the class `live`, which hides the still chart. */
export async function openReport(host: HTMLElement, text: string, signal: AbortSignal): Promise<void> {
  const { content, buffers } = await unpack(text);
  const store = new Store(clock);
  store.apply(decode(content, buffers));
  if (store.schema === null) return;
  document.documentElement.classList.add("live");
  const settings = { ...defaultSettings(), picked: host.dataset.device ?? "" };
  new View(host, store, { signal, clock, settings });
}

/**
 * Opens the run that a report's page carries. The page is recognised by its head, where no output of a notebook can
 * write.
 */
export function openPageOfReport(): void {
  const isReport = document.head?.querySelector('meta[name="generator"][content^="hfmem_widget "]');
  const host = document.getElementById("hfmem-chart");
  const data = document.getElementById("hfmem-data");
  if (isReport) {
    drawAllWhatIfs(document);
    void drawAllMoments(document);
  }
  // In an old browser, or on an incomplete page, the still chart stays.
  if (isReport && host && data) {
    openReport(host, data.textContent ?? "", new AbortController().signal).catch(() => {});
  }
}
