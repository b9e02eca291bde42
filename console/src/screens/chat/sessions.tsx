/** The sessions at the left: by day, with what each one waits for; searched by title and by what was said. */
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useRef } from "react";
import { Link, useLocation } from "wouter";
import { api } from "../../api/client";
import { useInvalidate } from "../../api/events";
import { Button, Empty, ErrorNotice, Filter, Icon, SearchField, relativeTime, spellTurns, useKeys, useTick, useUrlState, waitText, waitsForPerson, type Wait } from "../../components";

export interface SessionRow {
  id: string;
  hubId: string;
  owner: string;
  title: string | null;
  agent: string | null;
  model: string | null;
  labels: string[];
  archived: boolean;
  createdAt: number;
  updatedAt: number;
  running: boolean;
  /** How its newest run stands; null before the first. */
  runStatus: string | null;
  /** What it waits for after its newest run has ended. */
  waitsFor: Wait[];
}

interface SearchHit {
  sessionId: string;
  title: string | null;
  createdAt: number;
  snippet: { text: string; hit: boolean }[];
}

const PAGE = 50;
const STATUSES: [string, string][] = [
  ["", "All"],
  ["running", "Running"],
  ["waiting", "Waits for you"],
  ["archived", "Archived"],
];

export function useSessions(title: string, archived: boolean) {
  return useInfiniteQuery({
    queryKey: ["sessions", "list", title, archived],
    queryFn: ({ pageParam, signal }) =>
      api.get<{ sessions: SessionRow[] }>("/api/sessions", {
        query: { limit: PAGE, before: pageParam, title, archived: archived || undefined },
        signal,
      }),
    initialPageParam: "",
    getNextPageParam: (last) => (last.sessions.length < PAGE ? undefined : last.sessions.at(-1)?.id),
  });
}

/** `isAlone`: no conversation beside it has the title of the screen. */
export function SessionList({ current, isAlone }: { current: string | undefined; isAlone: boolean }) {
  const [params] = useUrlState();
  const [, go] = useLocation();
  useTick(60_000);
  const q = params.get("q") ?? "";
  const status = params.get("status") ?? "";
  const query = useSessions(q, status === "archived");
  const list = useRef<HTMLDivElement>(null);
  useInvalidate(["session.", "run.", "message", "approval.", "task."], ["sessions"]);
  const all = query.data?.pages.flatMap((page) => page.sessions) ?? [];
  const sessions = all.filter((each) => (status === "running" ? each.running : status === "waiting" ? waitsForPerson(each.waitsFor) : true));
  const search = location.search;
  const open = (step: number) => {
    const at = sessions.findIndex((each) => each.id === current);
    const next = sessions[Math.max(0, Math.min(sessions.length - 1, at + step))];
    if (next !== undefined) go(`/chat/${encodeURIComponent(next.id)}${search}`);
  };
  useKeys("Sessions", {
    j: ["next session", () => open(1)],
    k: ["previous session", () => open(-1)],
    n: ["new session", () => go("/chat")],
  });
  return (
    <aside className="chat-sessions" aria-label="Sessions">
      {isAlone && <h1 className="visually-hidden" tabIndex={-1}>Sessions</h1>}
      <div className="chat-sessions-head">
        <SearchField placeholder="Search sessions" />
        <div className="chat-sessions-bar">
          <Filter name="status" label="Status" choices={STATUSES} />
          <Link href="/chat" className="btn" aria-current={current === undefined ? "page" : undefined}>
            <Icon name="plus" size={14} /> New
          </Link>
        </div>
      </div>
      <div className="chat-sessions-list" ref={list}>
        {query.error !== null && <ErrorNotice error={query.error} onRetry={() => void query.refetch()} />}
        {groupByDay(sessions).map(([day, rows]) => (
          <section key={day}>
            <h2 className="chat-day">{day}</h2>
            {rows.map((session) => (
              <Link
                key={session.id}
                href={`/chat/${encodeURIComponent(session.id)}${search}`}
                className="chat-session"
                aria-current={session.id === current ? "true" : undefined}
              >
                <b dir="auto">{spellTurns(session.title ?? session.id)}</b>
                <SessionState session={session} />
              </Link>
            ))}
          </section>
        ))}
        {query.isSuccess && sessions.length === 0 && (q === "" && status === "" ? null : <p className="chat-none muted small">No sessions match.</p>)}
        {q.length > 1 && <Found q={q} />}
        {query.hasNextPage && (
          <Button className="chat-more" busy={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
            Show more
          </Button>
        )}
        {query.isSuccess && all.length === 0 && q === "" && status === "" && (
          <Empty title="No sessions yet">
            <p>Your first message makes one.</p>
          </Empty>
        )}
      </div>
    </aside>
  );
}

const STATES: Record<string, string> = { finished: "done", failed: "failed", stopped: "stopped", interrupted: "interrupted" };

/** What a session does, what it waits for or how its last answer ended, its agent, and when. */
function SessionState({ session }: { session: SessionRow }) {
  const [state, tone] = stateOf(session);
  return (
    <span className="chat-session-state">
      {state !== undefined && <span className={tone}>{state}</span>}
      {[state === undefined ? null : "", session.agent, relativeTime(session.updatedAt)].filter((each) => each !== null).join(" · ")}
    </span>
  );
}

function stateOf({ running, waitsFor, runStatus }: SessionRow): [state: string | undefined, tone?: string] {
  if (running) return ["running", "chat-runs"];
  if (waitsFor.length > 0) return [waitsForPerson(waitsFor) ? "waits for you" : `waits ${waitText(waitsFor)}`, "chat-waits"];
  return [STATES[runStatus ?? ""], runStatus === "failed" ? "chat-failed" : undefined];
}

/** Messages with the words that were searched for. */
function Found({ q }: { q: string }) {
  const { data } = useQuery({
    queryKey: ["search", q],
    queryFn: ({ signal }) => api.get<{ found: SearchHit[] }>("/api/search", { query: { q, limit: 20 }, signal }),
    staleTime: 10_000,
  });
  const found = data?.found ?? [];
  if (found.length === 0) return null;
  return (
    <section>
      <h2 className="chat-day">In messages</h2>
      {found.map((hit, index) => (
        <Link key={index} href={`/chat/${encodeURIComponent(hit.sessionId)}${location.search}`} className="chat-session">
          <b dir="auto">{spellTurns(hit.title ?? hit.sessionId)}</b>
          <span className="chat-snippet">
            {hit.snippet.map((piece, at) => (piece.hit ? <mark key={at}>{spellTurns(piece.text)}</mark> : spellTurns(piece.text)))}
          </span>
        </Link>
      ))}
    </section>
  );
}

const DAY = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "long" });
const DAY_OF_YEAR = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "long", year: "numeric" });

function groupByDay(sessions: SessionRow[]): [string, SessionRow[]][] {
  const groups = new Map<string, SessionRow[]>();
  for (const session of sessions) {
    const day = dayName(new Date(session.updatedAt * 1000));
    groups.set(day, [...(groups.get(day) ?? []), session]);
  }
  return [...groups];
}

function dayName(date: Date): string {
  const today = new Date();
  const midnight = new Date(today.getFullYear(), today.getMonth(), today.getDate()).getTime();
  const days = Math.ceil((midnight - date.getTime()) / 86_400_000);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  return (date.getFullYear() === today.getFullYear() ? DAY : DAY_OF_YEAR).format(date);
}
