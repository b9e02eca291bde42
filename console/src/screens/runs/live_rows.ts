/** What changes in the list of runs while it is shown. */
import { useQueryClient, type InfiniteData, type QueryKey } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { api, type Query } from "../../api/client";
import { reread, useEvents, type HubEvent } from "../../api/events";
import { useNewRows } from "../../components";
import type { Root, RootPage } from "./types";

/** How a row that is shown has ended. */
export interface Ending {
  status: string;
  at: number;
}

export const PAGE = 100; // rows
const DELAY = 300; // ms: a burst of events causes one request
const MAX_IDS = 200; // of a request
const MAX_KNOWN = 5_000; // rows, of which it is known which request has read them

/** Rows as the last request for them has read them, whatever the order in which the answers come. */
export class RowReads {
  private requests = 0;
  private readonly newest = new Map<string, { request: number; row: Root }>();

  /** Number a request that is sent now. */
  begin(): number {
    return ++this.requests;
  }

  /** The rows of the answer to a request; where a later one has been answered already, as that has them. */
  take(request: number, rows: Root[]): Root[] {
    if (this.newest.size > MAX_KNOWN) this.newest.clear(); // a page may be open for weeks
    return rows.map((row) => {
      const known = this.newest.get(row.id);
      if (known !== undefined && known.request > request) return known.row;
      this.newest.set(row.id, { request, row });
      return row;
    });
  }
}

interface Shown {
  /** Null until the list has been read. */
  rows: Root[] | null;
  query: Query;
  queryKey: QueryKey;
  isFiltered: boolean;
  reads: RowReads;
}

/**
 * What begins is counted, not put in: nothing moves under the cursor. What is shown and ends, ends in its place, and is
 * read once more for what it has cost.
 */
export function useLiveRows({ rows, query, queryKey, isFiltered, reads }: Shown) {
  const client = useQueryClient();
  const [ended, setEnded] = useState<Map<string, Ending>>(new Map());
  const key = JSON.stringify(queryKey);
  const current = useRef({ rows, key });
  current.current = { rows, key };
  const fresh = useNewRows(rows, key);
  const clear = () => {
    fresh.clear();
    setEnded(new Map());
  };
  useEffect(() => setEnded(new Map()), [key]);

  const read = async (asked: Query) => {
    const request = reads.begin();
    return reads.take(request, (await api.get<RootPage>("/api/calls", { query: asked })).calls);
  };
  /** Put rows where they are shown already. */
  const put = (found: Root[]) => {
    const by = new Map(found.map((root) => [root.id, root]));
    client.setQueryData<InfiniteData<RootPage>>(
      queryKey,
      (now) => now && { ...now, pages: now.pages.map((each) => ({ ...each, calls: each.calls.map((row) => by.get(row.id) ?? row) })) },
    );
    setEnded((now) => new Map([...now].filter(([id]) => isUnderWay(by.get(id)))));
  };
  const update = useBatch(async (ids) => put(await read({ roots: 1, ids: ids.join(), limit: MAX_IDS })));
  const countMatching = useBatch(async (ids) => {
    const found = await read({ ...query, ids: ids.join(), limit: MAX_IDS });
    if (current.current.key === key) fresh.add(found.map((row) => row.id));
  });
  /** Count what may have begun unseen, and read what may have ended. */
  const lookAgain = async () => {
    if (current.current.rows === null) return reread(client, queryKey);
    const found = await read({ ...query, limit: PAGE });
    const { rows: shown, key: now } = current.current;
    if (shown === null || now !== key) return;
    put(found);
    fresh.add(found.filter((row) => row.startedAt > (shown[0]?.startedAt ?? 0)).map((row) => row.id));
    const isFound = new Set(found.map((row) => row.id));
    update(shown.filter((row) => isUnderWay(row) && !isFound.has(row.id)).map((row) => row.id));
  };

  useEvents(["run.", "call.", "task."], (events) => {
    if (events.some(({ name }) => name === "reset" || name === "resumed")) void lookAgain().catch(() => undefined); // opening the list again finds it
    const shown = new Map((rows ?? []).map((row) => [row.id, row]));
    const news = new Set<string>();
    const changed = new Set<string>();
    const over = new Map<string, Ending>();
    for (const event of events) {
      for (const row of shown.values()) if (mayWaitForOthers(row, event, ended)) changed.add(row.id);
      const id = rootOf(event);
      const isEnd = event.name.endsWith(".ended");
      if (id === null) continue;
      if (isEnd && shown.has(id)) over.set(id, { status: shownStatus(event), at: event.createdAt });
      if (!shown.has(id) && (isFiltered || event.name.endsWith(".started"))) news.add(id);
    }
    update([...changed, ...over.keys()]);
    if (isFiltered) countMatching([...news]);
    else fresh.add([...news]);
    if (over.size > 0) setEnded((now) => new Map([...now, ...over]));
  });
  return { fresh: fresh.count, ended, clear };
}

/** The run, or the call that nothing else made, that an event tells of. */
function rootOf({ name, data }: HubEvent): string | null {
  if (name === "run.started" || name === "run.ended") return String(data["runId"]);
  const isRoot = name.startsWith("call.") && data["parentId"] === null && data["runId"] === null;
  return isRoot ? String(data["callId"]) : null;
}

function isUnderWay(row: Root | undefined): boolean {
  return row === undefined || row.status === "running" || row.status === "pending";
}

function shownStatus({ name, data }: HubEvent): string {
  const status = String(data["status"]);
  if (name === "run.ended" && status === "finished" && data["finishReason"] === "tool-calls") return "pending";
  return { finished: "done", stopped: "aborted", interrupted: "aborted" }[status] ?? status;
}

/** Whether a row waits for something else from now on, or no longer, because of another run or a task. */
function mayWaitForOthers(row: Root, { name, sessionId }: HubEvent, ended: Map<string, Ending>): boolean {
  if (row.kind !== "run" || row.sessionId !== sessionId) return false;
  return (name === "run.started" || name.startsWith("task.")) && (row.status === "pending" || ended.has(row.id));
}

/** Collect ids, and act on them together a moment later. */
function useBatch(act: (ids: string[]) => Promise<void>): (ids: string[]) => void {
  const latest = useRef(act);
  latest.current = act;
  const waiting = useRef(new Set<string>());
  const timer = useRef<number | null>(null);
  useEffect(() => () => clearTimeout(timer.current ?? undefined), []);
  return (ids) => {
    for (const id of ids) waiting.current.add(id);
    if (waiting.current.size === 0) return;
    timer.current ??= window.setTimeout(() => {
      timer.current = null;
      const some = [...waiting.current].slice(0, MAX_IDS); // a window shows fewer rows
      waiting.current.clear();
      void latest.current(some).catch(() => undefined); // the next change, or opening the list again, finds it
    }, DELAY);
  };
}
