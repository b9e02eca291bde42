/** Numbers as people read them: times, durations, money, tokens. Tabular; align them right in tables. */
import { useEffect, useState } from "react";
import { hubTime } from "../api/clock";

const RELATIVE = new Intl.RelativeTimeFormat(undefined, { numeric: "auto", style: "short" });
const CLOCK = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const COUNT = new Intl.NumberFormat(undefined);

/** A unix time in words, with the exact time on hover: "3 min. ago". */
export function Time({ at }: { at: number | null | undefined }) {
  useTick(30_000);
  if (at === null || at === undefined) return <span className="muted">–</span>;
  const date = new Date(at * 1000);
  return (
    <time className="num" dateTime={date.toISOString()} title={CLOCK.format(date)}>
      {relativeTime(at)}
    </time>
  );
}

export function relativeTime(at: number, now = hubTime()): string {
  const seconds = at - now;
  const size = Math.abs(seconds);
  if (size < 10) return seconds > 0 ? "in a moment" : "just now";
  if (size < 60) return RELATIVE.format(Math.round(seconds), "second");
  if (size < 3600) return RELATIVE.format(Math.round(seconds / 60), "minute");
  if (size < 86_400) return RELATIVE.format(Math.round(seconds / 3600), "hour");
  if (size < 30 * 86_400) return RELATIVE.format(Math.round(seconds / 86_400), "day");
  return new Date(at * 1000).toLocaleDateString();
}

/** Seconds: "38 ms", "1.88 s", "2 min 5 s". Less than none, as of two clocks, is none. Each is rounded before its unit is chosen. */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return "–";
  const ms = Math.max(0, Math.round(seconds * 1000));
  if (ms < 1000) return `${ms} ms`;
  if (ms < 9_995) return `${(ms / 1000).toFixed(2)} s`;
  if (ms < 59_950) return `${(ms / 1000).toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

export function Duration({ seconds }: { seconds: number | null | undefined }) {
  return <span className="num">{duration(seconds)}</span>;
}

/** The time left until a unix time: "14:32"; `over` when it has passed. */
export function Countdown({ until, over = "expired" }: { until: number; over?: string }) {
  useTick(1000);
  const left = Math.ceil(until - hubTime());
  if (left <= 0) return <span className="num">{over}</span>;
  if (left >= 2 * 86_400) return <span className="num">{Math.floor(left / 86_400)} days</span>;
  const two = (value: number) => String(value).padStart(2, "0");
  const hours = Math.floor(left / 3600);
  const text = `${hours > 0 ? `${hours}:` : ""}${two(Math.floor((left % 3600) / 60))}:${two(left % 60)}`;
  return <span className="num">{text}</span>;
}

const MAX_TIMER = 2 ** 31 - 1; // ms

/** Whether a unix time has passed. */
export function useIsPast(at: number | null | undefined): boolean {
  const [past, setPast] = useState(isPast(at));
  useEffect(() => {
    setPast(isPast(at));
    const left = ((at ?? 0) - hubTime()) * 1000;
    if (left <= 0 || left > MAX_TIMER) return;
    const timer = setTimeout(() => setPast(true), left);
    return () => clearTimeout(timer);
  }, [at]);
  return past;
}

export function isPast(at: number | null | undefined): boolean {
  return at !== null && at !== undefined && at <= hubTime();
}

/** "expires in 14:32", and then "expired". */
export function Expiry({ at }: { at: number }) {
  return useIsPast(at) ? (
    <>expired</>
  ) : (
    <>
      expires in <Countdown until={at} />
    </>
  );
}

/** US dollars; null: it has no price. */
export function money(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "$0";
  if (value < 0.0001) return "< $0.0001";
  return `$${value < 1 ? value.toFixed(4) : value.toFixed(2)}`;
}

export function Money({ value }: { value: number | null | undefined }) {
  const known = value !== null && value !== undefined;
  return (
    <span className="num" title={known ? undefined : "the model has no price"}>
      {money(value)}
    </span>
  );
}

export function count(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : COUNT.format(value);
}

/** "41.2 M", "9.1 k", "511". */
export function shortCount(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  return value >= 10_000 ? `${(value / 1e3).toFixed(1)} k` : COUNT.format(value);
}

export function Tokens({ input, output }: { input: number | null | undefined; output: number | null | undefined }) {
  return (
    <span className="num">
      {count(input)} in · {count(output)} out
    </span>
  );
}

export function bytes(value: number): string {
  if (value < 1000) return `${value} B`;
  if (value < 1e6) return `${(value / 1e3).toFixed(1)} kB`;
  return value < 1e9 ? `${(value / 1e6).toFixed(1)} MB` : `${(value / 1e9).toFixed(1)} GB`;
}

/** Render again every `period` ms while the tab is visible. */
export function useTick(period: number): void {
  const [, setTick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => {
      if (document.visibilityState === "visible") setTick((tick) => tick + 1);
    }, period);
    return () => clearInterval(timer);
  }, [period]);
}
