/** The most severe finding, in one line. */

import { make, setAttribute, setText } from "./dom.ts";
import { type Finding, SEVERITIES, type Severity } from "./judged.ts";
import type { Span } from "./protocol.ts";
import type { Store } from "./store.ts";

/** A shape, and a word for those who see neither the shape nor its colour. */
export const MARKS: Record<Severity, [mark: string, word: string]> = {
  critical: ["◆", "critical"],
  warn: ["▲", "warning"],
  info: ["●", "note"],
};
const OUTERMOST = new Set(["cell", "block"]);

/** The findings in an outermost span, the most severe first; those without a span belong to the newest. */
export function findingsIn(store: Store, span: Span): Finding[] {
  const isNewest = newest(store)?.id === span.id;
  const own = store.findings.filter(
    (finding) => finding.span === span.id || (isNewest && ofNone(store, finding)),
  );
  return own.sort((a, b) => SEVERITIES.indexOf(a.severity) - SEVERITIES.indexOf(b.severity));
}

/** A span that was dropped, or is inside another, counts like none. */
function ofNone(store: Store, { span }: Finding): boolean {
  const known = span === null ? undefined : store.spans.get(span);
  return known === undefined || known.parent !== null;
}

function newest(store: Store): Span | undefined {
  return [...store.spans.values()].findLast(({ kind, parent }) => parent === null && OUTERMOST.has(kind));
}

/** A mark and a sentence on at most two lines; the tooltip has all of it. */
export class Notice {
  readonly element: HTMLElement;
  private readonly mark = make("span", "notice-mark", { "aria-hidden": "true" });
  private readonly word = make("span", "hidden");
  private readonly sentence = make("span", "");

  constructor(tag: "span" | "div", attributes: Record<string, string> = {}) {
    this.element = make(tag, "notice", attributes, [this.mark, this.word, this.sentence]);
    this.update([]);
  }

  update(findings: Finding[]): void {
    const [gravest] = findings;
    this.element.hidden = gravest === undefined;
    const [mark, word] = MARKS[gravest?.severity ?? "info"];
    setAttribute(this.element, "data-hfmem-severity", gravest?.severity ?? "");
    setText(this.mark, mark);
    setText(this.word, `${word}: `);
    setText(this.sentence, gravest?.title ?? "");
    setAttribute(this.element, "title", findings.map(({ title }) => title).join("\n"));
  }
}

/** A sentence that is not a finding. */
export function noteOf(title: string): Finding {
  return { kind: "note", severity: "info", title, span: null, device: null, time: null };
}

/** The findings to show during a run: those of running spans that are worse than "info". */
export function warningsOf(store: Store): Finding[] {
  const span = newest(store);
  const found = span === undefined ? store.findings : findingsIn(store, span);
  return found.filter(({ severity }) => severity !== "info");
}
