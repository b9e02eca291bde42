/**
 * What happens in the hub: one stream of `GET /api/events` a tab, whoever listens.
 *
 * It runs while somebody listens and the tab is visible, goes on behind the last event that it saw, and tells
 * `reset` when events may be missing: then everything that is shown is read anew.
 */
import { useQueryClient, type QueryKey } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { HubError, send } from "./client";
import { readFrames } from "./sse";

export interface HubEvent {
  id: string | null;
  /** `run.started`, `approval.requested`, `message`, `data-…`; `reset`: events may be missing. */
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

class EventStream {
  private readonly listeners = new Set<Listener>();
  private readonly watchers = new Set<() => void>();
  private controller: AbortController | null = null;
  private last: string | null = null;
  private timer: ReturnType<typeof setTimeout> | null = null;
  private failures = 0;
  private missed = false;
  private refused = false; // the key may not follow events: what it sees is not live
  state: StreamState = "off";

  constructor() {
    document.addEventListener("visibilitychange", () => this.update());
  }

  listen(listener: Listener): () => void {
    if (this.listeners.size === 0) this.refused = false; // another key may have signed in
    this.listeners.add(listener);
    this.update();
    return () => {
      this.listeners.delete(listener);
      setTimeout(() => this.update(), 1000); // a screen that follows another keeps the stream
    };
  }

  watch(callback: () => void): () => void {
    this.watchers.add(callback);
    return () => this.watchers.delete(callback);
  }

  private update(): void {
    const wanted = this.listeners.size > 0 && document.visibilityState === "visible" && !this.refused;
    if (wanted && this.controller === null) void this.run();
    if (!wanted && this.controller !== null) this.close();
  }

  private close(): void {
    this.controller?.abort();
    this.controller = null;
    if (this.timer !== null) clearTimeout(this.timer);
    // Without an id to go on behind, what happens while the stream is off is told by a reset.
    this.missed ||= this.last === null;
    this.set("off");
  }

  private async run(): Promise<void> {
    const controller = (this.controller = new AbortController());
    this.set("connecting");
    try {
      const headers: Record<string, string> = this.last === null ? {} : { "last-event-id": this.last };
      const response = await send("GET", "/api/events", { headers, signal: controller.signal });
      this.set("live");
      this.failures = 0;
      if (this.missed) this.tell([RESET]);
      this.missed = false;
      for await (const frames of readFrames(response.body!, controller.signal)) {
        const events = frames.map((frame) => {
          if (frame.id !== null) this.last = frame.id;
          return JSON.parse(frame.data) as HubEvent;
        });
        this.tell(events);
      }
    } catch (error) {
      this.failures += 1; // tried again below
      this.refused = error instanceof HubError && error.status === 403;
    }
    if (this.controller !== controller) return;
    if (this.refused) {
      this.controller = null;
      this.set("off");
      return;
    }
    this.missed ||= this.last === null;
    this.set("waiting");
    const wait = Math.min(500 * 2 ** this.failures, MAX_WAIT) * (0.5 + Math.random() / 2);
    this.timer = setTimeout(() => {
      this.controller = null;
      this.update();
    }, wait);
  }

  private tell(events: HubEvent[]): void {
    for (const listener of [...this.listeners]) listener(events);
  }

  private set(state: StreamState): void {
    this.state = state;
    for (const watcher of [...this.watchers]) watcher();
  }
}

const RESET: HubEvent = { id: null, name: "reset", sessionId: "", owner: "", actor: null, createdAt: 0, data: {} };
const stream = new EventStream();

/** Whether an event has one of these names; a name that ends with a dot or dash is a beginning. `reset` always. */
export function matches(event: HubEvent, names: readonly string[]): boolean {
  if (event.name === "reset") return true;
  return names.some((name) => (/[.-]$/.test(name) ? event.name.startsWith(name) : event.name === name));
}

/** Call `onEvents` with the events that have one of these names, such as `"run."`, and with `reset`. */
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

/** Read these queries anew when something with one of these names happens; at most about three times a second. */
export function useInvalidate(names: string | readonly string[], ...keys: QueryKey[]): void {
  const client = useQueryClient();
  const timer = useRef<ReturnType<typeof setTimeout> | null>(null);
  useEvents(names, () => {
    timer.current ??= setTimeout(() => {
      timer.current = null;
      for (const queryKey of keys) void client.invalidateQueries({ queryKey });
    }, INVALIDATE_DELAY);
  });
  useStaleAfter(...keys);
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

/** Whether the stream of events is connected. */
export function useStreamState(): StreamState {
  const [state, setState] = useState(stream.state);
  useEffect(() => stream.watch(() => setState(stream.state)), []);
  return state;
}
