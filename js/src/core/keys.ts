/**
 * Keys within a view. Arrows move within a group of controls, Escape resets a zoom. The keys used here do not reach
 * the page: in a notebook the same keys move from cell to cell.
 */

const GROUPS = "[role='toolbar'], [role='group'] [role='group']";
const CONTROLS = "button, input";

export function followKeys(root: HTMLElement, leaveZoom: () => boolean, signal: AbortSignal): void {
  const follow = (event: KeyboardEvent) => {
    if (event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey) return;
    const next = event.key === "Escape" ? null : neighbour(event);
    if (next === null && !(event.key === "Escape" && leaveZoom())) return;
    next?.focus();
    event.preventDefault();
    event.stopPropagation();
  };
  root.addEventListener("keydown", follow, { signal });
}

/** The control to which an arrow key, Home or End moves the focus within a group. */
function neighbour({ key, target }: KeyboardEvent): HTMLElement | null {
  const group = (target as HTMLElement).closest(GROUPS);
  const all = [...(group?.querySelectorAll<HTMLElement>(CONTROLS) ?? [])].filter(isSeen);
  const at = all.indexOf(target as HTMLElement);
  if (at < 0) return null;
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[key];
  return to === undefined ? null : all[(to + all.length) % all.length]!;
}

function isSeen(node: HTMLElement): boolean {
  return !node.closest("[hidden]") && getComputedStyle(node).display !== "none";
}
