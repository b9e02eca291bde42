/**
 * The focus is never lost: when the element that has it leaves the page or is disabled, the element nearest to it
 * takes it, as far as the same part of the screen has one; else the title of the screen.
 *
 * The browser would put it on the body, from where the next Tab begins at the top of the page.
 */

const FOCUSABLE = "a[href], button, input, select, textarea, summary, [tabindex]";

interface Place {
  element: HTMLElement;
  /** From the element up to the body, as they were. */
  ancestors: HTMLElement[];
  /** What Tab reached in the screen when the element took the focus, in order. */
  order: HTMLElement[];
}

let place: Place | null = null;

/** Watch the focus of the page. */
export function keepFocus(): void {
  document.addEventListener("focusin", (event) => {
    if (event.target instanceof HTMLElement) place = placeOf(event.target);
  });
  // Whoever clicks where nothing takes the focus has left it on purpose.
  document.addEventListener("pointerdown", () => {
    if (place !== null && document.activeElement === document.body) place = null;
  });
  const observer = new MutationObserver(() => {
    // React may have put the focus elsewhere in an effect: look when it is done.
    if (place !== null && !isAlive(place.element)) queueMicrotask(restore);
  });
  observer.observe(document.body, { subtree: true, childList: true, attributes: true, attributeFilter: ["disabled", "open"] });
}

function restore(): void {
  if (place === null || isAlive(place.element)) return;
  const { activeElement } = document;
  if (activeElement !== null && activeElement !== document.body && activeElement !== place.element) return;
  const target = neighbour(place) ?? titleOf(place);
  // The next change tries again if nothing took it: a screen that is loading has no title yet, and a dialog that is
  // about to close lets nothing outside of it be focused.
  target?.focus({ preventScroll: true });
}

function neighbour({ element, ancestors, order }: Place): HTMLElement | null {
  const at = order.indexOf(element);
  for (const ancestor of ancestors) {
    if (!ancestor.isConnected) continue;
    if (ancestor.matches("main, body, dialog[open]")) return null;
    if (ancestor.hasAttribute("tabindex")) return ancestor;
    const near = [...order.slice(at + 1), ...order.slice(0, at).reverse()].find((each) => ancestor.contains(each) && isReachable(each));
    if (near !== undefined) return near;
  }
  return null;
}

/** The title of the screen, or of the dialog that is open. */
function titleOf({ ancestors }: Place): HTMLElement | null {
  const dialog = ancestors.find((each) => each.matches("dialog[open]") && each.isConnected) ?? document.querySelector("dialog[open]");
  return (dialog ?? document).querySelector<HTMLElement>(dialog === null ? "main h1" : "h2");
}

function placeOf(element: HTMLElement): Place {
  const ancestors: HTMLElement[] = [];
  for (let each = element.parentElement; each !== null; each = each.parentElement) ancestors.push(each);
  const screen = element.closest("dialog, main, nav");
  return { element, ancestors, order: [...(screen?.querySelectorAll<HTMLElement>(FOCUSABLE) ?? [])] };
}

function isAlive(element: HTMLElement): boolean {
  return element.isConnected && !element.matches(":disabled");
}

function isReachable(element: HTMLElement): boolean {
  return isAlive(element) && element.tabIndex >= 0 && element.checkVisibility();
}
