/** A session: its messages, the answer that is being made, and the composer. */
import { useQuery } from "@tanstack/react-query";
import { useEffect, useLayoutEffect, useMemo, useRef, useState, useSyncExternalStore, type FocusEvent, type KeyboardEvent } from "react";
import { Virtualizer, type VirtualizerHandle } from "virtua";
import { Link, useLocation } from "wouter";
import { api, HubError } from "../../api/client";
import { useEvents, useInvalidate, useStreamState } from "../../api/events";
import { useSession } from "../../api/session";
import { Button, Empty, ErrorNotice, Icon, Loading, ScreenHeader, Status, toastError, useKeys, useNarrow, WaitLine, waitText, type Wait } from "../../components";
import { Composer, type Draft } from "./composer";
import type { ChatController, Queued } from "./controller";
import { MessageView, isOpenQuestion, textOf, type MessageActions } from "./message";
import { isTool, type Message, type TextPart } from "./messages";
import type { SessionRow } from "./sessions";
import { useApprovals } from "./tool_call";

const LONG = 60; // messages
const MARGIN = 26; // px above the first message
const CHANGES = ["session.", "run.", "approval.", "task."];
const NEAR = 80; // px from the end: what is new is followed

interface ConversationProps {
  controller: ChatController;
  /** The session as the hub has it; undefined for a new one. */
  isNew: boolean;
  onCreated: () => void;
}

export function Conversation({ controller, isNew, onCreated }: ConversationProps) {
  const state = useSyncExternalStore(controller.subscribe, controller.snapshot);
  const [, go] = useLocation();
  const narrow = useNarrow();
  const session = useQuery({
    queryKey: ["sessions", "one", controller.id],
    queryFn: () => api.get<SessionRow>(`/api/sessions/${encodeURIComponent(controller.id)}`),
    // The first message makes it, if it is accepted.
    enabled: !isNew && state.status !== "sending" && (state.error === null || state.messages.length > 0),
    retry: false,
  });
  const [chosen, setChosen] = useState<{ agent?: string | null; model?: string | null }>({});
  const agent = chosen.agent !== undefined ? chosen.agent : (session.data?.agent ?? null);
  const model = chosen.model !== undefined ? chosen.model : (session.data?.model ?? null);
  const waits = state.messages.at(-1)?.parts.some((part) => (isTool(part) && part.state === "approval-requested") || isOpenQuestion(part)) ?? false;
  const approvals = useStable(useApprovals(controller.id, waits));
  const runs = useRuns(controller.id, !isNew && state.status !== "sending", state.runs);
  // On a wide screen the list of sessions reads them anew, this one too.
  useInvalidate(narrow ? CHANGES : "session.", ["sessions"]);
  const [isDeleted, setDeleted] = useState(false);
  useEvents("session.", (events) => {
    for (const { name, sessionId } of events) {
      if (sessionId === controller.id && name.startsWith("session.")) setDeleted(name === "session.deleted");
    }
  });

  useKeys("Chat", { a: ["go to what waits for an answer", focusRequest] });

  const settings = useRef({ agent, model });
  settings.current = { agent, model };
  const actions = useMemo<MessageActions>(
    () => ({
      edit: (id, text) => controller.edit(id, text, settings.current),
      regenerate: (id) => void controller.regenerate(id, settings.current).catch(() => undefined), // which is shown
      switchTo: (id) => void controller.switchTo(id).catch(toastError),
      fork: (id) => {
        api
          .post<{ id: string }>(`/api/sessions/${encodeURIComponent(controller.id)}/fork`, { messageId: id })
          .then((fork) => go(`/chat/${encodeURIComponent(fork.id)}`))
          .catch(toastError);
      },
    }),
    [controller, go],
  );
  const onSend = async (draft: Draft) => {
    const sent = controller.submit(draft.text, draft);
    onCreated();
    await sent.catch((error: unknown) => {
      if (controller.state.error !== error) toastError(error); // it is shown already
      throw error;
    });
  };
  const isLive = useStreamState() === "live";
  useEffect(() => {
    if (isLive) controller.resume();
  }, [isLive, controller]);
  const last = state.messages.at(-1);
  const waitsFor = controller.isBusy ? [] : (session.data?.waitsFor ?? []);
  const runId = last === undefined ? undefined : runs.ids[last.id];
  const isMissing = session.error instanceof HubError && session.error.status === 404;
  const title = session.data?.title ?? (isNew ? "New session" : (firstWords(state.messages) ?? controller.id));
  const sub = [agent ?? session.data?.agent, model ?? last?.metadata?.servedModel ?? last?.metadata?.model].filter(Boolean).join(" · ");
  return (
    <section className="chat-talk" aria-label="Conversation">
      <ScreenHeader
        title={title}
        sub={narrow ? undefined : <SessionSub waits={waitsFor} text={sub} />}
        back={
          narrow && (
            <Link href={`/chat${location.search === "" ? "?list=1" : location.search}`} className="btn btn-quiet btn-icon" aria-label="Sessions">
              <Icon name="left" size={14} />
            </Link>
          )
        }
      >
        {last?.role === "assistant" && !narrow && (
          <Button icon="fork" disabled={controller.isBusy} onClick={() => actions.fork(last.id)}>
            Fork
          </Button>
        )}
        {runId !== undefined && (
          <Link href={`/runs/${runId}`} className="btn">
            Open run
          </Link>
        )}
      </ScreenHeader>
      {narrow && waitsFor.length > 0 && <WaitLine waits={waitsFor} isAnsweredHere />}
      <Log controller={controller} runs={runs} approvals={approvals} actions={actions} isNew={isNew} isMissing={isMissing} />
      <div className="chat-column">
        <Waiting queued={state.queued} onWithdraw={(id) => void controller.withdraw(id).catch(toastError)} />
        {isDeleted && (
          <p className="chat-deleted" role="status">
            This session was deleted. What you see is no longer stored; a new message creates it again. <Link href="/chat">New session</Link>
          </p>
        )}
        {state.error !== null && <ErrorNotice error={state.error} onRetry={retryOf(controller, settings.current)} />}
        <Composer
          sessionId={isNew ? "new" : controller.id}
          agent={agent}
          model={model}
          isBusy={controller.isBusy}
          canStop={controller.isBusy}
          onSend={onSend}
          onStop={() => controller.stop()}
          onSettings={(changed) => setChosen((now) => ({ ...now, ...changed }))}
        />
      </div>
    </section>
  );
}

/** Move the focus to the last approval or question that is open. */
function focusRequest(): void {
  // What is folded of the input comes first: it cannot be approved before.
  const open = [...document.querySelectorAll(".chat-log .chat-call-ask")].at(-1);
  open?.querySelector<HTMLElement>(":is([data-more], :is(.chat-approval-actions, .chat-options) :is(button, input):enabled)")?.focus();
}

/** What the session waits for, and who answers in it. */
function SessionSub({ waits, text }: { waits: Wait[]; text: string }) {
  if (waits.length === 0) return <>{text}</>;
  return (
    <>
      <Status status="waiting" /> {waitText(waits)}
      {text !== "" && ` · ${text}`}
    </>
  );
}

/** After an answer that failed: answer its message anew. After a failed request: read the session again. */
function retryOf(controller: ChatController, options: { agent: string | null; model: string | null }): (() => void) | undefined {
  const { messages, retry } = controller.state;
  const last = messages.at(-1);
  if (retry === null) return undefined; // what was written is there to be sent again
  if (retry === "read" || last === undefined) return () => void controller.open(false);
  const again = () => (last.role === "assistant" ? controller.regenerate(last.id, options) : controller.edit(last.id, textOf(last), options));
  return () => void again().catch(() => undefined); // which is shown
}

interface LogProps {
  controller: ChatController;
  runs: Runs;
  approvals: ReturnType<typeof useApprovals>;
  actions: MessageActions;
  isNew: boolean;
  /** Whether the hub has no session of this id. */
  isMissing: boolean;
}

function Log({ controller, runs, approvals, actions, isNew, isMissing }: LogProps) {
  const state = useSyncExternalStore(controller.subscribe, controller.snapshot);
  const scroller = useRef<HTMLDivElement>(null);
  const list = useRef<VirtualizerHandle>(null);
  const column = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const top = useRef(0);
  const { messages } = state;
  const count = messages.length;
  const isLong = useIsLong(state.status !== "loading", count);
  const [focused, setFocused] = useState<number | null>(null);
  const kept = useMemo(() => (focused === null ? [count - 1] : [focused, count - 1]), [focused, count]);
  useLayoutEffect(() => {
    if (state.status === "sending") follows.current = true; // one's own message is brought into view
  }, [state.status]);
  useLayoutEffect(() => {
    if (isLong && follows.current) list.current?.scrollToIndex(count - 1, { align: "end" });
  }, [isLong, count]);
  useLayoutEffect(() => {
    const element = scroller.current;
    if (element !== null && follows.current) element.scrollTop = element.scrollHeight;
  });
  // Only a reader scrolls up; rows that are measured anew change the height, and the end stays in view.
  const onScroll = () => {
    const element = scroller.current;
    if (element === null) return;
    if (element.scrollHeight - element.scrollTop - element.clientHeight < NEAR) follows.current = true;
    else if (element.scrollTop < top.current) follows.current = false;
    top.current = element.scrollTop;
  };
  useEffect(() => {
    const observer = new ResizeObserver(() => {
      const element = scroller.current;
      if (element !== null && follows.current) element.scrollTop = element.scrollHeight;
    });
    if (column.current !== null) observer.observe(column.current);
    return () => observer.disconnect();
  }, []);
  const isLive = state.status === "streaming";
  const shown = messages.map((message, index) => (
    <MessageView
      key={message.id}
      message={message}
      isLive={isLive && index === count - 1 && message.role === "assistant"}
      isBusy={controller.isBusy}
      runId={runs.ids[message.id]}
      error={runs.errors[message.id]}
      approvals={approvals}
      actions={actions}
    />
  ));
  // What has the focus stays where it is, also a message that is being edited while somebody scrolls.
  const onFocus = (event: FocusEvent<HTMLDivElement>) => {
    const article = event.target.closest("[data-message]");
    const at = messages.findIndex((message) => message.id === article?.getAttribute("data-message"));
    setFocused(at < 0 ? null : at);
  };
  // The browser's own jump to the beginning passes rows that are measured then, and so ends somewhere below it.
  const onKeyDown = (event: KeyboardEvent<HTMLDivElement>) => {
    if (event.key !== "Home" || event.target !== event.currentTarget) return;
    follows.current = false;
    if (list.current === null) return;
    event.preventDefault();
    list.current.scrollToIndex(0, { offset: -MARGIN });
  };
  return (
    <div
      className="chat-log"
      ref={scroller}
      onScroll={onScroll}
      onFocus={onFocus}
      onKeyDown={onKeyDown}
      tabIndex={0}
      aria-label="Messages"
      role="group"
    >
      <div className="chat-column" ref={column}>
        {state.status === "loading" && <Loading />}
        {count === 0 && state.status === "ready" && state.error === null && <Beginning isNew={isNew} isMissing={isMissing} />}
        {isLong ? (
          <Virtualizer ref={list} scrollRef={scroller} keepMounted={kept} startMargin={MARGIN}>
            {shown}
          </Virtualizer>
        ) : (
          shown
        )}
        {state.status === "sending" && (
          <div className="chat-working" role="status">
            <span className="chat-dot" /> <span className="muted small">Sent</span>
          </div>
        )}
      </div>
      <Spoken message={isLive ? messages.at(-1) : undefined} />
    </div>
  );
}

/** Whether the session was long when it was opened: then only the messages that are looked at are in the page. */
function useIsLong(isLoaded: boolean, count: number): boolean {
  const first = useRef<boolean | null>(null);
  if (first.current === null && isLoaded) first.current = count > LONG;
  return first.current === true;
}

/** What screen readers hear of an answer: sentence by sentence, not token by token. */
function Spoken({ message }: { message: Message | undefined }) {
  const sentences = message === undefined ? [] : lastSentences(message);
  return (
    <div className="visually-hidden" role="log" aria-live="polite" aria-label="Answer as it comes">
      {sentences.map(({ key, sentence }) => (
        <p key={key}>{sentence}</p>
      ))}
    </div>
  );
}

const HEARD = 3; // sentences
const LOOKED_AT = 2_000; // characters at the end of the text: an answer may have megabytes

/** The last whole sentences of an answer, each with a key that it keeps while the answer grows. */
function lastSentences(message: Message): { key: string; sentence: string }[] {
  const part = message.parts.findLastIndex((each) => each.type === "text");
  const text = (message.parts[part] as TextPart | undefined)?.text ?? "";
  const start = Math.max(0, text.length - LOOKED_AT);
  const found: { key: string; sentence: string }[] = [];
  for (const match of text.slice(start).matchAll(/[^.!?\n]*(?:[.!?]+(?=\s)|\n)/g)) {
    if (match[0].trim() !== "") found.push({ key: `${part}/${start + match.index}`, sentence: match[0].trim() });
  }
  return found.slice(-HEARD);
}

function Beginning({ isNew, isMissing }: { isNew: boolean; isMissing: boolean }) {
  const session = useSession();
  if (isMissing) {
    return (
      <Empty icon="help" title="There is no such session">
        <p>It was deleted, or it belongs to somebody else. A message makes a session of yours with this id.</p>
        <Link href="/chat">New session</Link>
      </Empty>
    );
  }
  return (
    <Empty title={isNew ? "Start with a message" : "No messages yet"}>
      <p>
        Write a message below. Tool calls are shown as they happen. Calls that need your approval wait here and in the <Link href="/inbox">inbox</Link>.
      </p>
      {session.can("operations") && (
        <p className="muted small">
          Agents and their operations are in <code>dragoman.yaml</code>; <Link href="/operations">Operations</Link> shows what can be called.
        </p>
      )}
    </Empty>
  );
}

const MODES: Record<string, string> = { steer: "after this step", queue: "after this answer", interrupt: "now" };

/** Messages that wait for the answer that is being made. */
function Waiting({ queued, onWithdraw }: { queued: Queued[]; onWithdraw: (messageId: string) => void }) {
  if (queued.length === 0) return null;
  return (
    <ul className="chat-queued" aria-label="Messages that wait">
      {queued.map((each) => (
        <li key={each.messageId}>
          <Icon name="wait" size={13} />
          <span className="chat-queued-text">{textOf(each.message)}</span>
          <span className="muted small">{MODES[each.mode] ?? each.mode}</span>
          <Button look="quiet" icon="x" aria-label="Withdraw" onClick={() => onWithdraw(each.messageId)} />
        </li>
      ))}
    </ul>
  );
}

interface RunRow {
  id: string;
  messageId: string;
  error: string | null;
}

/** By the messages that they answered with. */
interface Runs {
  ids: Record<string, string>;
  /** Why an answer failed that was not seen to fail here. */
  errors: Record<string, string>;
}

/** The run of each answer, newest first: an answer that waited has several, and the last one is shown. */
function useRuns(sessionId: string, enabled: boolean, seen: Record<string, string>): Runs {
  const { data } = useQuery({
    queryKey: ["runs", "session", sessionId],
    queryFn: () => api.get<{ runs: RunRow[] }>("/api/runs", { query: { session: sessionId, limit: 100 } }),
    enabled,
    staleTime: Infinity,
  });
  return useMemo(() => {
    const ids: Record<string, string> = {};
    const errors: Record<string, string> = {};
    for (const run of data?.runs ?? []) {
      if (ids[run.messageId] === undefined && run.error !== null) errors[run.messageId] = run.error;
      ids[run.messageId] ??= run.id;
    }
    return { ids: { ...ids, ...seen }, errors };
  }, [data, seen]);
}

/** The same map while its keys are the same: messages are rendered again when what they wait for changes. */
function useStable<T>(map: Map<string, T>): Map<string, T> {
  const kept = useRef(map);
  if (map.size !== kept.current.size || [...map].some(([key, value]) => kept.current.get(key) !== value)) kept.current = map;
  return kept.current;
}

function firstWords(messages: Message[]): string | null {
  const first = messages.find((message) => message.role === "user");
  const text = first === undefined ? "" : textOf(first);
  return text === "" ? null : text.slice(0, 60);
}
