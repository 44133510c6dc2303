/**
 * Announcements for screen readers: the outcome of a run, and its findings. Figures that keep changing are left out,
 * and nothing is announced twice, although a page may show a run both in its cell and in the panel.
 */

import { make, setText } from "./dom.ts";

/** An inline style, since the page's style sheet may be inside a shadow root. */
const HIDDEN =
  "position:absolute;width:1px;height:1px;margin:-1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap";
const MOST_RUNS = 64;

const announced = new Map<string, Set<string>>();
let region: HTMLElement | null = null;

/**
 * The region belongs to the page, since a cell's own goes with its live chart. It must exist before its first text.
 */
export function prepareToAnnounce(): void {
  region ??= make("div", "announcer", { role: "status", style: HIDDEN });
  if (!region.isConnected) document.body.append(region);
}

/** `key` names the subject, which is announced once, even if its figures change later. */
export function announce(run: string, key: string, text: string): void {
  const known = announced.get(run) ?? new Set();
  if (known.has(key)) return;
  announced.set(run, known.add(key));
  if (announced.size > MOST_RUNS) announced.delete(announced.keys().next().value!);
  if (region !== null) setText(region, text);
}
