/** A number that is chosen by pointer or keyboard. */

import { make, setText } from "./dom.ts";
import { formatCount } from "./format.ts";

export function slider(
  name: string,
  value: number,
  min: number,
  max: number,
  step: number,
  onChange: (value: number) => void,
  say: (value: number) => string = formatCount,
): HTMLElement {
  const range = { type: "range", min: `${min}`, max: `${max}`, step: `${step}` };
  // JupyterLab uses the arrow keys itself.
  const input = make("input", "", { ...range, "data-lm-suppress-shortcuts": "true" });
  input.style.cssText = "display:block;width:100%;min-height:24px;margin:0;accent-color:#0072B2";
  input.value = `${value}`;
  const shown = make("strong", "");
  const tell = () => {
    const text = say(input.valueAsNumber);
    setText(shown, text);
    input.setAttribute("aria-valuetext", text);
  };
  input.addEventListener("input", () => {
    tell();
    onChange(input.valueAsNumber);
  });
  tell();
  const style = "flex:1 1 200px;max-width:320px;font-size:12px";
  return make("label", "", { style }, [`${name} `, shown, input]);
}
