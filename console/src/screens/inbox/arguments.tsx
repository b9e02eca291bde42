/** The arguments of a call, and how they differ from those that were approved last. */
import { useState } from "react";
import { isLarge, JsonView, spell, Time } from "../../components";
import type { Item } from "./types";

const MAX_LINES = 40;
const MAX_VALUE = 2_000; // characters of a value
const MAX_SAME = 150; // characters before a difference that are shown as well
const CONTEXT = 40; // characters before a difference

interface Line {
  path: string;
  before?: string;
  after?: string;
  /** Whether what would run is longer than what is shown of it. */
  isCut: boolean;
}

interface Shown {
  text: string;
  /** What differs from the call that was approved last; null if there is none. */
  lines: Line[] | null;
  /** Whether all of it, or all that differs, is in sight without being opened. */
  isWhole: boolean;
}

const shown = new WeakMap<Item, Shown>();

function shownOf(item: Item): Shown {
  let found = shown.get(item);
  if (found === undefined) {
    const text = visible(item.input);
    const lines = item.previous ? differences(item.previous.input, item.input) : null;
    const isWhole = lines === null ? !isLarge(text) : lines.length <= MAX_LINES && !lines.some((line) => line.isCut);
    shown.set(item, (found = { text, lines, isWhole }));
  }
  return found;
}

/** Whether somebody has to open the arguments to see all that would run. */
export function hasToBeOpened(item: Item): boolean {
  return !shownOf(item).isWhole;
}

export function Arguments({ item, onShownWhole }: { item: Item; onShownWhole: () => void }) {
  const { previous } = item;
  const { text, lines } = shownOf(item);
  const [open, setOpen] = useState(false);
  if (!previous || lines === null) return <JsonView value={text} label="arguments" onShownWhole={onShownWhole} />;
  return (
    <div className="inbox-diff">
      <p className="muted">
        compared with the last approved call
        {previous.answeredAt !== null && (
          <>
            , <Time at={previous.answeredAt} />
          </>
        )}
      </p>
      {lines.length === 0 && <p>the same arguments</p>}
      <ul>
        {lines.slice(0, MAX_LINES).map((line) => (
          <li key={line.path}>
            <span>{spell(line.path) || "input"}: </span>
            {line.before !== undefined && <del>{line.before}</del>}
            {line.before !== undefined && line.after !== undefined && <span aria-hidden="true"> → </span>}
            {line.after !== undefined && <ins>{line.after}</ins>}
            {line.after === undefined && <span className="muted"> (left out)</span>}
          </li>
        ))}
      </ul>
      {lines.length > MAX_LINES && <p className="muted">and {lines.length - MAX_LINES} more differences</p>}
      <details onToggle={(event) => event.target === event.currentTarget && setOpen(event.currentTarget.open)}>
        <summary data-more={open ? undefined : true}>All arguments</summary>
        {open && <JsonView value={text} label="arguments" onShownWhole={onShownWhole} />}
      </details>
    </div>
  );
}

/** What differs between two JSON values, by path. */
function differences(before: unknown, after: unknown, path = ""): Line[] {
  if (isObject(before) && isObject(after)) {
    return [...new Set([...Object.keys(before), ...Object.keys(after)])].flatMap((name) =>
      differences(before[name], after[name], path === "" ? name : `${path}.${name}`),
    );
  }
  if (Array.isArray(before) && Array.isArray(after)) {
    return Array.from({ length: Math.max(before.length, after.length) }, (_, at) => at).flatMap((at) =>
      differences(before[at], after[at], `${path}[${at}]`),
    );
  }
  const [old, now] = [textOf(before), textOf(after)];
  if (old === now) return [];
  if (old === undefined || now === undefined) return [{ path, before: excerpt(old, 0), after: excerpt(now, 0), isCut: (now?.length ?? 0) > MAX_VALUE }];
  const start = startOfDifference(old, now);
  const same = endOfBoth(old, now, start);
  const isCut = now.length - same - start > MAX_VALUE;
  return [{ path, before: excerpt(old, start), after: excerpt(now, start), isCut }];
}

function textOf(value: unknown): string | undefined {
  return value === undefined ? undefined : spell(JSON.stringify(value));
}

/** Where long values are shown from, so that their difference is seen. */
function startOfDifference(old: string, now: string): number {
  let at = 0;
  while (at < old.length && old[at] === now[at]) at += 1;
  return at < MAX_SAME ? 0 : at - CONTEXT;
}

/** How many characters the two have in common at their ends. */
function endOfBoth(old: string, now: string, start: number): number {
  const most = Math.min(old.length, now.length) - start;
  let count = 0;
  while (count < most && old[old.length - 1 - count] === now[now.length - 1 - count]) count += 1;
  return count;
}

function excerpt(text: string | undefined, start: number): string | undefined {
  if (text === undefined) return undefined;
  return `${start > 0 ? "…" : ""}${text.slice(start, start + MAX_VALUE)}${start + MAX_VALUE < text.length ? "…" : ""}`;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function visible(value: unknown): string {
  return spell(JSON.stringify(value, null, 2) ?? "");
}
