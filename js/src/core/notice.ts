/** The gravest of what was found, in one line. */

import { make, setAttribute, setText } from "./dom.ts";
import { type Finding, SEVERITIES, type Severity } from "./judged.ts";
import type { Span } from "./protocol.ts";
import type { Store } from "./store.ts";

/** A form, and the word for who sees neither it nor its colour. */
export const MARKS: Record<Severity, [mark: string, word: string]> = {
  critical: ["◆", "critical"],
  warn: ["▲", "warning"],
  info: ["●", "note"],
};
const OUTERMOST = new Set(["cell", "block"]);

/** What was found in a span that is watched by itself, the gravest first; also what is of no span, in the newest. */
export function findingsIn(store: Store, span: Span): Finding[] {
  const isNewest = newest(store)?.id === span.id;
  const own = store.findings.filter(
    (finding) => finding.span === span.id || (isNewest && ofNone(store, finding)),
  );
  return own.sort((a, b) => SEVERITIES.indexOf(a.severity) - SEVERITIES.indexOf(b.severity));
}

/** A span that is not known any more, or is within another, says as little of where it belongs as none. */
function ofNone(store: Store, { span }: Finding): boolean {
  const known = span === null ? undefined : store.spans.get(span);
  return known === undefined || known.parent !== null;
}

function newest(store: Store): Span | undefined {
  return [...store.spans.values()].findLast(({ kind, parent }) => parent === null && OUTERMOST.has(kind));
}

/** A mark and a sentence on two lines at most; whoever wants the rest points at it. */
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

/** A sentence that is no judgement. */
export function noteOf(title: string): Finding {
  return { kind: "note", severity: "info", title, span: null, device: null, time: null };
}

/** What deserves a word while the run goes on: of what is being watched, and worse than a note. */
export function warningsOf(store: Store): Finding[] {
  const span = newest(store);
  const found = span === undefined ? store.findings : findingsIn(store, span);
  return found.filter(({ severity }) => severity !== "info");
}
