/** report.js: the chart on a page that carries its run with it; `features/report/page.py` writes that page. */

import { defaultSettings } from "../core/settings.ts";
import { openPage, type Page } from "./page.ts";

/** Nothing comes after what the page carries, and so no silence is long. */
const clock = () => 0;

/** A frame as the page carries it: Base64 of the gzip of a line of JSON and, behind it, the buffers. */
export async function unpack(text: string): Promise<{ content: unknown; buffers: Uint8Array[] }> {
  const bytes = await inflate(Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0)));
  let from = bytes.indexOf(10) + 1;
  const { content, sizes } = JSON.parse(new TextDecoder().decode(bytes.subarray(0, from)));
  const buffers = (sizes as number[]).map((size) => {
    from += size;
    return bytes.subarray(from - size, from);
  });
  return { content, buffers };
}

/** The live chart in `host`; the page's root gets the class `live` once there is something to draw. */
export async function openReport(host: HTMLElement, text: string): Promise<Page> {
  const { content, buffers } = await unpack(text);
  const page = openPage(host, {
    clock,
    settings: { ...defaultSettings(), device: host.dataset.device ?? "" },
  });
  page.receive(content, buffers);
  document.documentElement.classList.add("live");
  return page;
}

async function inflate(bytes: Uint8Array<ArrayBuffer>): Promise<Uint8Array> {
  const { readable, writable } = new DecompressionStream("gzip");
  const writer = writable.getWriter();
  // Where it fails, `readable` fails too.
  Promise.all([writer.write(bytes), writer.close()]).catch(() => {});
  return new Uint8Array(await new Response(readable).arrayBuffer());
}

const host = document.getElementById("hfmem-chart");
const data = document.getElementById("hfmem-data");
// An old browser, or a page that was cut: the still chart stays.
if (host && data) openReport(host, data.textContent ?? "").catch(() => {});
