/**
 * What a screen reader says by itself: what became of a run, and what was found in it. No figure that moves is among
 * it, and nothing is said twice, although a page may show a run in its cell and in the panel.
 */

import { make, setText } from "./dom.ts";

/** In line, since what a page is styled by may stand in a shadow root. */
const HIDDEN =
  "position:absolute;width:1px;height:1px;margin:-1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap";
const MOST_RUNS = 64;

const said = new Map<string, Set<string>>();
let region: HTMLElement | null = null;

/** A place of the page's, for that of a cell goes with the live chart; it must be there before it has something to say. */
export function prepareToAnnounce(): void {
  region ??= make("div", "announcer", { role: "status", style: HIDDEN });
  if (!region.isConnected) document.body.append(region);
}

/** `key` is what it is about: it is said once, whatever its figures become. */
export function announce(run: string, key: string, text: string): void {
  const known = said.get(run) ?? new Set();
  if (known.has(key)) return;
  said.set(run, known.add(key));
  if (said.size > MOST_RUNS) said.delete(said.keys().next().value!);
  if (region !== null) setText(region, text);
}
