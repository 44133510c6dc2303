/** Adds the style sheet, once to each document or shadow root. */

import bar from "../styles/bar.css";
import chart from "../styles/chart.css";
import controls from "../styles/controls.css";
import foot from "../styles/foot.css";
import headline from "../styles/headline.css";
import legend from "../styles/legend.css";
import ranks from "../styles/ranks.css";
import root from "../styles/root.css";
import tabs from "../styles/tabs.css";
import { make, setText } from "./dom.ts";

const MARK = "data-hfmem-styles";
const TEXT = [root, bar, tabs, controls, headline, chart, legend, foot, ranks].join("\n");

/** Replaces a sheet of an earlier version on the page. */
export function injectStyles(host: Element): void {
  const tree = host.getRootNode();
  const target = tree instanceof ShadowRoot ? tree : document.head;
  const present = target.querySelector(`style[${MARK}]`);
  setText(present ?? target.appendChild(make("style", "", { [MARK]: "" })), TEXT);
}
