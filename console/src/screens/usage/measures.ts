/** What a chart can show: its lines, and how its numbers are written. */
import { count, duration, money, shortCount, spellTurns } from "../../components";
import type { Points, UsageAnswer } from "./types";

export interface Line {
  label: string;
  values: (number | null)[];
}

export interface Measure {
  id: string;
  title: string;
  format: (value: number | null) => string;
  /** Sums have a line for each group; percentiles have their own lines. */
  values: ((points: Points) => number[]) | null;
  percentiles?: (points: Points) => Line[];
}

const add = (one: number[], two: number[]) => one.map((value, at) => value + (two[at] ?? 0));

function percentiles(of: "firstByte" | "duration"): (points: Points) => Line[] {
  return (points) => [
    { label: "p50", values: points[of].p50 },
    { label: "p95", values: points[of].p95 },
    { label: "p99", values: points[of].p99 },
  ];
}

export const MEASURES: Measure[] = [
  { id: "cost", title: "Cost", format: money, values: (points) => points.cost },
  { id: "tokens", title: "Tokens", format: shortCount, values: (points) => add(points.inputTokens, points.outputTokens) },
  { id: "requests", title: "Requests", format: count, values: (points) => points.calls },
  { id: "first-token", title: "First token", format: duration, values: null, percentiles: percentiles("firstByte") },
  { id: "duration", title: "Duration", format: duration, values: null, percentiles: percentiles("duration") },
];

export const GROUPS: [id: string, word: string, column: string][] = [
  ["model", "model", "model_served"],
  ["provider", "provider", "provider"],
  ["owner", "owner", "owner"],
  ["key", "key", "key_id"],
  ["session", "session", "session_id"],
  ["operation", "agent as operation", "operation"],
];

export const RANGES: [id: string, text: string, bucket: "hour" | "day"][] = [
  ["24h", "24 hours", "hour"],
  ["7d", "7 days", "hour"],
  ["30d", "30 days", "day"],
  ["90d", "90 days", "day"],
  ["365d", "1 year", "day"],
];

const MAX_LINES = 5;

/** The lines of a chart: the total and its largest groups, or the percentiles of the total or of a group. */
export function linesOf(measure: Measure, answer: UsageAnswer, selected: number | null): Line[] {
  const row = selected === null ? undefined : answer.rows[selected];
  const points = row?.points ?? answer.total.points;
  if (measure.percentiles !== undefined) return measure.percentiles(points);
  const values = measure.values ?? (() => []);
  if (row?.points !== undefined) return [{ label: groupName(row.group), values: values(row.points) }];
  const lines = [{ label: "all", values: values(answer.total.points) as (number | null)[] }];
  if (answer.rows.length < 2) return lines;
  const groups = answer.rows.flatMap((each) => (each.points === undefined ? [] : [{ group: each.group, points: each.points }]));
  return [...lines, ...groups.slice(0, MAX_LINES).map((each) => ({ label: groupName(each.group), values: values(each.points) }))];
}

export function groupName(group: Record<string, string | null>): string {
  return Object.values(group)
    .map((value) => spellTurns(value ?? "unknown"))
    .join(" · ");
}
