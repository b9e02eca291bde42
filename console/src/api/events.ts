/**
 * What happens in the hub: one stream of `GET /api/events` a tab, whoever listens.
 *
 * It runs while somebody listens and the tab is visible, and goes on behind the last event that it saw. The hub does
 * not store all events: after a break, `resumed` tells those who listen to the others that some may be missing, and
 * `reset` tells everybody when that may be so of all. What is shown is then read anew.
 *
 * The first screen is shown once the stream has begun (`useStreamStarted`), so that nothing happens unseen between
 * what a screen reads first and the first event.
 */
import { useQueryClient, type QueryClient, type QueryKey } from "@tanstack/react-query";
import { useEffect, useRef, useSyncExternalStore } from "react";
import { HubError, send } from "./client";
import { WatchedStream } from "./sse";

export interface HubEvent {
  id: string | null;
  /** `run.started`, `approval.requested`, `message`, `data-…`; `resumed`, `reset`: events may be missing. */
  name: string;
  sessionId: string;
  owner: string;
  actor: string | null;
  createdAt: number;
  data: Record<string, unknown>;
}

export type StreamState = "off" | "connecting" | "live" | "waiting";
type Listener = (events: HubEvent[]) => void;

const MAX_WAIT = 30_000; // ms between two attempts
const MAX_START = 1_000; // ms that the first screen waits for the stream

class EventStream {
  private readonly listeners = new Set<Listener>();
  private readonly watchers = new Set<() => void>();
  private controller: AbortController | null = null;
  private last: string | null = null;
  private timer: ReturnType<typeof setTimeout> | null = null;
  private failures = 0;
  private refused = false; // the key may not follow events: what it sees is not live
  /** Whether something may be shown that is older than the events that come next. */
  private behind = false;
  state: StreamState = "off";
  /** Whether the stream has ended or could not be opened, and is not back yet. */
  isAway = false;
  /** Whether screens may read what they show. */
  started = false;
  /** Why the hub refused the stream at the last attempt; null if it did not answer. */
  problem: HubError | null = null;

  constructor() {
    document.addEventListener("visibilitychange", () => this.update());
    window.addEventListener("online", () => this.retry());
  }

  /** Connect now: the network is back, or somebody has signed in again. */
  retry(): void {
    this.refused = false;
    if (this.timer !== null) {
      clearTimeout(this.timer);
      this.timer = this.controller = null;
    }
    this.update();
  }

  listen(listener: Listener): () => void {
    if (this.listeners.size === 0) setTimeout(() => this.start(), MAX_START);
    this.listeners.add(listener);
    this.update();
    return () => {
      this.listeners.delete(listener);
      this.update();
    };
  }

  watch = (callback: () => void): (() => void) => {
    this.watchers.add(callback);
    return () => this.watchers.delete(callback);
  };

  private update(): void {
    const wanted = this.listeners.size > 0 && document.visibilityState === "visible" && !this.refused;
    if (wanted && this.controller === null) void this.run();
    if (!wanted && this.controller !== null) this.close();
    if (this.listeners.size === 0) this.forget();
    else if (!wanted) this.start();
  }

  private close(): void {
    this.controller?.abort();
    this.controller = null;
    if (this.timer !== null) clearTimeout(this.timer);
    this.timer = null;
    this.behind = true;
    this.set("off");
  }

  /** Let screens read what they show; what happens until the stream is live is told by a `reset`. */
  private start(): void {
    if (this.started || this.listeners.size === 0) return;
    this.started = true;
    this.behind = this.state !== "live";
    this.set(this.state);
  }

  /** Begin anew with the next listener: everybody has gone, and somebody else may sign in. */
  private forget(): void {
    this.last = null;
    this.failures = 0;
    this.refused = this.behind = this.started = this.isAway = false;
  }

  private async run(): Promise<void> {
    const controller = (this.controller = new AbortController());
    const stream = new WatchedStream(controller.signal);
    this.set("connecting");
    try {
      const headers: Record<string, string> = this.last === null ? {} : { "last-event-id": this.last };
      const response = await send("GET", "/api/events", { headers, signal: stream.signal });
      this.failures = 0;
      this.problem = null;
      this.isAway = false;
      this.set("live");
      this.start();
      if (this.behind) this.tell([notice(this.last === null ? "reset" : "resumed")]);
      this.behind = false;
      for await (const frames of stream.read(response)) {
        const events = frames.map((frame) => {
          if (frame.id !== null) this.last = frame.id;
          return JSON.parse(frame.data) as HubEvent;
        });
        this.tell(events);
      }
    } catch (error) {
      if (this.controller !== controller) return;
      this.failures += 1; // tried again below
      this.problem = error instanceof HubError && error.status > 0 ? error : null;
      this.refused = this.problem?.status === 403 || this.problem?.status === 401; // until the next sign-in
    } finally {
      stream.close();
    }
    if (this.controller !== controller) return;
    if (this.refused) {
      this.isAway = false;
      this.close();
      this.start();
      return;
    }
    this.behind = this.isAway = true;
    this.set("waiting");
    this.start();
    const wait = Math.min(500 * 2 ** this.failures, MAX_WAIT) * (0.5 + Math.random() / 2);
    this.timer = setTimeout(() => this.retry(), wait);
  }

  private tell(events: HubEvent[]): void {
    for (const listener of [...this.listeners]) listener(events);
  }

  private set(state: StreamState): void {
    this.state = state;
    for (const watcher of [...this.watchers]) watcher();
  }
}

function notice(name: "reset" | "resumed"): HubEvent {
  return { id: null, name, sessionId: "", owner: "", actor: null, createdAt: 0, data: {} };
}

/** Beginnings of the names of events that the hub does not store. */
const NOT_STORED = ["call.", "log.", "operations."];
const stream = new EventStream();

/**
 * Whether an event has one of these names; a name that ends with a dot or dash is a beginning. `reset` always, and
 * `resumed` where events of these names are not stored.
 */
export function matches(event: HubEvent, names: readonly string[]): boolean {
  if (event.name === "reset") return true;
  if (event.name === "resumed") return names.some((name) => NOT_STORED.some((start) => name.startsWith(start)));
  return names.some((name) => (/[.-]$/.test(name) ? event.name.startsWith(name) : event.name === name));
}

/** Call `onEvents` with the events that have one of these names, such as `"run."`, with `reset` and `resumed`. */
export function useEvents(names: string | readonly string[], onEvents: (events: HubEvent[]) => void): void {
  const handler = useRef(onEvents);
  handler.current = onEvents;
  const wanted = (typeof names === "string" ? [names] : names).join(" ");
  useEffect(() => {
    const list = wanted.split(" ");
    return stream.listen((events) => {
      const found = events.filter((event) => matches(event, list));
      if (found.length > 0) handler.current(found);
    });
  }, [wanted]);
}

const INVALIDATE_DELAY = 300; // ms: a burst of events causes one request

/** How many requests it takes to read queries anew: one for each page that is shown. */
function countRequests(client: QueryClient, keys: QueryKey[]): number {
  const shown = keys.flatMap((queryKey) => client.getQueryCache().findAll({ queryKey, type: "active" }));
  const pages = shown.map(({ state }) => (state.data as { pages?: unknown[] } | undefined)?.pages?.length ?? 1);
  return pages.reduce((sum, each) => sum + each, 0);
}

/** Read these queries anew when something with one of these names happens; with about three requests a second at most. */
export function useInvalidate(names: string | readonly string[], ...keys: QueryKey[]): void {
  const client = useQueryClient();
  const reading = useRef(false);
  const again = useRef(false);
  const read = () => {
    again.current = reading.current;
    if (reading.current) return;
    reading.current = true;
    setTimeout(async () => {
      again.current = false;
      await reread(client, ...keys);
      reading.current = false;
      if (again.current) read();
    }, INVALIDATE_DELAY * Math.max(1, countRequests(client, keys)));
  };
  useEvents(names, read);
  useStaleAfter(...keys);
}

/**
 * Read queries anew. One that is being read is read again afterwards: its answer may be older than what has happened,
 * and requests that are given up for others would never be answered where something happens all the time.
 */
export async function reread(client: QueryClient, ...keys: QueryKey[]): Promise<void> {
  const queries = client.getQueryCache();
  const under = keys.flatMap((queryKey) => queries.findAll({ queryKey, fetchStatus: "fetching" }));
  await Promise.allSettled(under.map((query) => query.promise));
  await Promise.all(keys.map((queryKey) => client.invalidateQueries({ queryKey })));
}

/** Read these queries anew when they are shown again: nobody hears of changes while the component is away. */
export function useStaleAfter(...keys: QueryKey[]): void {
  const client = useQueryClient();
  const text = JSON.stringify(keys);
  useEffect(
    () => () => {
      for (const queryKey of JSON.parse(text) as QueryKey[]) void client.invalidateQueries({ queryKey, refetchType: "none" });
    },
    [client, text],
  );
}

/** Follow events again after a sign-in. */
export function retryEvents(): void {
  stream.retry();
}

/** Whether the stream of events is connected. */
export function useStreamState(): StreamState {
  return useSyncExternalStore(stream.watch, () => stream.state);
}

/** Whether the stream of events has ended or could not be opened, and is not back yet; not while it is opened first. */
export function useStreamAway(): boolean {
  return useSyncExternalStore(stream.watch, () => stream.isAway);
}

/** Whether screens may read what they show: the stream is live, or it is not to be waited for. */
export function useStreamStarted(): boolean {
  return useSyncExternalStore(stream.watch, () => stream.started);
}

/** Why the hub refuses the stream of events; null if it does not answer. */
export function useStreamProblem(): HubError | null {
  return useSyncExternalStore(stream.watch, () => stream.problem);
}
