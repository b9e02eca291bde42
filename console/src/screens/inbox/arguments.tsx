/** The arguments of a call, and how they differ from those that were approved last. */
import { useMemo } from "react";
import { JsonView, spell, Time } from "../../components";
import type { Item } from "./types";

const MAX_LINES = 40;
const MAX_VALUE = 300; // characters
const CONTEXT = 40; // characters before a difference

interface Line {
  path: string;
  before?: string;
  after?: string;
}

export function Arguments({ item }: { item: Item }) {
  const { previous } = item;
  const lines = useMemo(() => (previous ? differences(previous.input, item.input) : null), [previous, item.input]);
  if (!previous || lines === null) return <JsonView value={visible(item.input)} label="arguments" />;
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
            <span>{line.path || "input"}: </span>
            {line.before !== undefined && <del>{line.before}</del>}
            {line.before !== undefined && line.after !== undefined && <span aria-hidden="true"> → </span>}
            {line.after !== undefined && <ins>{line.after}</ins>}
            {line.after === undefined && <span className="muted"> (left out)</span>}
          </li>
        ))}
      </ul>
      {lines.length > MAX_LINES && <p className="muted">and {lines.length - MAX_LINES} more differences</p>}
      <details>
        <summary>All arguments</summary>
        <JsonView value={visible(item.input)} label="arguments" />
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
  const start = old === undefined || now === undefined ? 0 : startOfDifference(old, now);
  return [{ path, before: excerpt(old, start), after: excerpt(now, start) }];
}

function textOf(value: unknown): string | undefined {
  return value === undefined ? undefined : spell(JSON.stringify(value));
}

/** Where long values are shown from, so that their difference is seen. */
function startOfDifference(old: string, now: string): number {
  let at = 0;
  while (at < old.length && old[at] === now[at]) at += 1;
  return at < MAX_VALUE / 2 ? 0 : at - CONTEXT;
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
