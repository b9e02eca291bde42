/** What changes in the list of runs while it is shown. */
import { useQueryClient, type InfiniteData } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { api } from "../../api/client";
import { useEvents, type HubEvent } from "../../api/events";
import type { Root, RootPage } from "./types";

/** How a row that is shown has ended. */
export interface Ending {
  status: string;
  at: number;
}

const DELAY = 300; // ms: a burst of events causes one request
const OF_SESSION = 20; // runs of a session that are looked at when what it waits for changes

/** What begins is counted, not put in: nothing moves under the cursor. What is shown and ends, ends in its place. */
export function useLiveRows(rows: Root[], queryKey: unknown[]) {
  const [fresh, setFresh] = useState(0);
  const [ended, setEnded] = useState<Map<string, Ending>>(new Map());
  const update = useUpdate(queryKey);
  const shown = useRef<Root[]>([]);
  shown.current = rows;
  /** Sessions in which tasks were given: their runs may wait for these when they end. */
  const giving = useRef(new Set<string>());

  useEvents(["run.", "call.", "task."], (events) => {
    const begun = new Set<string>();
    const over = new Map<string, Ending>();
    for (const event of events) {
      if (event.name === "reset") setFresh((now) => Math.max(now, 1));
      if (event.name.startsWith("task.")) giving.current.add(event.sessionId);
      if (changesWait(shown.current, event, giving.current)) update(event.sessionId);
      const id = rootOf(event);
      if (id === null) continue;
      const isShown = shown.current.some((row) => row.id === id);
      if (event.name.endsWith(".started") && !isShown) begun.add(id);
      if (event.name.endsWith(".ended") && isShown) over.set(id, { status: shownStatus(event), at: event.createdAt });
    }
    if (begun.size > 0) setFresh((now) => now + begun.size);
    if (over.size > 0) setEnded((now) => new Map([...now, ...over]));
  });
  const clear = () => {
    setFresh(0);
    setEnded(new Map());
  };
  return { fresh, ended, clear };
}

/** The run, or the call that nothing else made, that an event tells of. */
function rootOf({ name, data }: HubEvent): string | null {
  if (name === "run.started" || name === "run.ended") return String(data["runId"]);
  const isRoot = name.startsWith("call.") && data["parentId"] === null && data["runId"] === null;
  return isRoot ? String(data["callId"]) : null;
}

function shownStatus({ name, data }: HubEvent): string {
  const status = String(data["status"]);
  if (name === "run.ended" && isPaused(data)) return "pending";
  return { finished: "done", stopped: "aborted", interrupted: "aborted" }[status] ?? status;
}

function isPaused(data: HubEvent["data"]): boolean {
  return data["status"] === "finished" && data["finishReason"] === "tool-calls";
}

/** Whether a row waits from now on, or for something else, or no longer. */
function changesWait(rows: Root[], { name, data, sessionId }: HubEvent, giving: Set<string>): boolean {
  const ofSession = rows.filter((row) => row.kind === "run" && row.sessionId === sessionId);
  if (name.startsWith("task.")) return ofSession.length > 0;
  if (name === "run.started") return ofSession.some((row) => row.status === "pending");
  const mayWait = name === "run.ended" && (isPaused(data) || giving.has(sessionId));
  return mayWait && ofSession.some((row) => row.id === data["runId"]);
}

/** Read the shown runs of a session anew, and put them where they are. */
function useUpdate(queryKey: unknown[]): (sessionId: string) => void {
  const client = useQueryClient();
  const key = useRef(queryKey);
  key.current = queryKey;
  const timers = useRef(new Map<string, number>());
  useEffect(() => () => timers.current.forEach((timer) => clearTimeout(timer)), []);
  const read = async (session: string) => {
    const page = await api.get<RootPage>("/api/calls", { query: { roots: "1", kind: "run", session, limit: OF_SESSION } });
    const found = new Map(page.calls.map((root) => [root.id, root]));
    client.setQueryData<InfiniteData<RootPage>>(
      key.current,
      (now) => now && { ...now, pages: now.pages.map((each) => ({ ...each, calls: each.calls.map((row) => found.get(row.id) ?? row) })) },
    );
  };
  return (session) => {
    if (timers.current.has(session)) return;
    const timer = window.setTimeout(() => {
      timers.current.delete(session);
      void read(session).catch(() => undefined); // the next change, or opening the list again, finds it
    }, DELAY);
    timers.current.set(session, timer);
  };
}
