/** Elements whose text is never HTML, and is written only if it changes. */

type Attributes = Record<string, string>;

export function make<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  name: string,
  attributes: Attributes = {},
  children: (Node | string)[] = [],
): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  if (name !== "") node.className = name.replace(/\S+/g, "hfmem-$&");
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

export function button(name: string, title: string, onClick: () => void, text = ""): HTMLButtonElement {
  const node = make("button", name, { type: "button", title, "aria-label": title }, [text]);
  node.addEventListener("click", onClick);
  return node;
}

export function setText(node: Node, text: string): void {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node: Element, name: string, value: string): void {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

let canvas: CanvasRenderingContext2D | null | undefined;

/** The width of `text` in CSS pixels; an estimate without a canvas. */
export function textWidth(text: string, pixels: number, font: string, weight = 400): number {
  canvas ??= document.createElement("canvas").getContext("2d");
  if (!canvas) return 0.6 * pixels * text.length;
  canvas.font = `${weight} ${pixels}px ${font}`;
  return canvas.measureText(text).width;
}
