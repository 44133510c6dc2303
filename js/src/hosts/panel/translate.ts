/**
 * The panel's texts in JupyterLab's language; English if no language pack has them.
 *
 * The chart is the same in every host, and in English there.
 */

import type { Translations, Translator } from "./jupyterlab.ts";

/** The name of this package in a language pack. */
const DOMAIN = "hfmem_widget";

const english: Translations = {
  __: (text, ...values) => text.replace(/%(\d)/g, (_, place) => String(values[Number(place) - 1])),
};
let translations = english;

export function speakWith(translator: Translator | null): void {
  translations = translator?.load(DOMAIN) ?? english;
}

/** A text in which `%1`, `%2` … are replaced by values. */
export function __(text: string, ...values: unknown[]): string {
  return translations.__(text, ...values);
}

/** The same with elements instead of values. */
export function withElements(text: string, ...elements: Element[]): (Element | string)[] {
  const marked = __(text, ...elements.map((_, place) => `\n${place}\n`)).split("\n");
  return marked.map((part, place) => (place % 2 === 1 ? elements[Number(part)]! : part));
}
