/** The style sheet, once in each document or shadow root. */

import text from "../styles.css";

const MARK = "data-hfmem-styles";

export function injectStyles(host: Element): void {
  const root = host.getRootNode();
  const target = root instanceof ShadowRoot ? root : document.head;
  if (target.querySelector(`style[${MARK}]`)) return;
  const style = document.createElement("style");
  style.setAttribute(MARK, "");
  style.textContent = text;
  target.append(style);
}
