/**
 * Keys. `useKeys("Runs", { "j": ["next run", next], "g i": ["inbox", open] })` binds them while a component is
 * mounted, and lists them behind `?`. Single keys are silent in inputs and can be switched off (WCAG 2.1.4).
 * A later binding of the same key wins. `mod+k` is Ctrl or ⌘, and works everywhere.
 */
import { useLayoutEffect, useRef, useSyncExternalStore } from "react";

export type KeyBindings = Record<string, [what: string, run: (event: KeyboardEvent) => void]>;

interface Group {
  title: string;
  bindings: { current: KeyBindings };
}

const groups: Group[] = [];
const SINGLE_KEYS = "dragoman.singleKeys";
const SEQUENCE_MS = 1000;
let watchers: (() => void)[] = [];
let pending: { key: string; at: number } | null = null;

export function singleKeysOn(): boolean {
  return localStorage.getItem(SINGLE_KEYS) !== "off";
}

export function setSingleKeys(on: boolean): void {
  localStorage.setItem(SINGLE_KEYS, on ? "on" : "off");
  watchers.forEach((watcher) => watcher());
}

export function useSingleKeys(): boolean {
  return useSyncExternalStore((watcher) => {
    watchers.push(watcher);
    return () => {
      watchers = watchers.filter((each) => each !== watcher);
    };
  }, singleKeysOn);
}

/** Bind keys while the component is mounted, from its first paint on; null binds nothing. */
export function useKeys(title: string, bindings: KeyBindings | null): void {
  const current = useRef<KeyBindings>({});
  current.current = bindings ?? {};
  useLayoutEffect(() => {
    const group = { title, bindings: current };
    groups.push(group);
    return () => void groups.splice(groups.indexOf(group), 1);
  }, [title]);
}

/** What can be pressed now: titles, keys and what they do. */
export function boundKeys(): [title: string, keys: [key: string, what: string][]][] {
  const found = new Map<string, Map<string, string>>();
  for (const { title, bindings } of groups) {
    const list = found.get(title) ?? new Map<string, string>();
    for (const [key, [what]] of Object.entries(bindings.current)) list.set(key, what);
    if (list.size > 0) found.set(title, list);
  }
  return [...found].map(([title, list]) => [title, [...list]]);
}

function isTyping(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLElement &&
    (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) &&
    !(target instanceof HTMLInputElement && /^(checkbox|radio|button)$/.test(target.type))
  );
}

function onKeyDown(event: KeyboardEvent): void {
  if (event.defaultPrevented || event.isComposing || event.altKey) return;
  if (document.querySelector("dialog.sign-in-again") !== null) return; // nothing else can be reached
  const mod = event.ctrlKey || event.metaKey;
  if (mod) {
    run(`mod+${event.key.toLowerCase()}`, event);
    return;
  }
  const inDialog = document.querySelector("dialog[open]") !== null;
  if (inDialog || isTyping(event.target) || (!singleKeysOn() && event.key.length === 1)) return;
  // Enter and Space belong to what has the focus.
  if (event.key === "Enter" && event.target instanceof HTMLElement && event.target.closest("a,button,summary")) return;
  if (pending !== null && event.timeStamp - pending.at < SEQUENCE_MS && run(`${pending.key} ${event.key}`, event)) {
    pending = null;
    return;
  }
  pending = { key: event.key, at: event.timeStamp };
  run(event.key, event);
}

function run(key: string, event: KeyboardEvent): boolean {
  for (let at = groups.length - 1; at >= 0; at--) {
    const binding = groups[at]?.bindings.current[key];
    if (binding === undefined) continue;
    event.preventDefault();
    binding[1](event);
    return true;
  }
  return false;
}

window.addEventListener("keydown", onKeyDown);
