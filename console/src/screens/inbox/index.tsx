/** The inbox: approvals and questions by age, answered one by one or several at once. */
import { useInfiniteQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useMemo, useReducer, useRef, useState } from "react";
import { VList, type VListHandle } from "virtua";
import { api } from "../../api/client";
import { reread, useEvents } from "../../api/events";
import { Button, Dialog, Empty, ErrorNotice, isPast, Kbd, Loading, NewRows, ScreenHeader, count, relativeTime, toast, toastError, useKeys, useNarrow, useNewRows, useUrlState } from "../../components";
import { hasToBeOpened } from "./arguments";
import { Entry } from "./entry";
import { RulesDialog } from "./rules";
import type { Approval, ApprovalPage, FocusTarget } from "./types";
import "./inbox.css";

const PAGE = 50;
const MAX_BULK = 200;
const END_ROWS = 10;

export default function InboxScreen() {
  const [params, setParams] = useUrlState();
  const history = params.get("view") === "history";
  const operation = params.get("operation") ?? "";
  const client = useQueryClient();
  const narrow = useNarrow();
  const list = useRef<VListHandle>(null);
  /** The request that takes the focus, or its first answer does, once it can. */
  const takesFocus = useRef<FocusTarget | null>(null);
  const [, redraw] = useReducer((times: number) => times + 1, 0);
  const [busy, setBusy] = useState<Set<string>>(new Set());
  const [picked, setPicked] = useState<Set<string>>(new Set());
  /** Items whose arguments were shown whole, as "approval/place". */
  const [shown, setShown] = useState<Set<string>>(new Set());
  const [denying, setDenying] = useState<string[] | null>(null);
  const [always, setAlways] = useState<Approval | null>(null);
  const [rules, setRules] = useState(false);
  const queryKey = ["inbox", history, operation];
  const { data, error, isLoading, refetch, fetchNextPage, hasNextPage, isFetching } = useInfiniteQuery({
    queryKey,
    queryFn: ({ pageParam, signal }) =>
      api.get<ApprovalPage>("/api/approvals", {
        query: {
          status: history ? null : "pending",
          order: history ? "newest" : "oldest",
          compare: "1",
          counts: pageParam === null ? "1" : null,
          operation,
          limit: PAGE,
          before: pageParam,
        },
        signal,
      }),
    initialPageParam: null as string | null,
    getNextPageParam: (page) => page.next,
    staleTime: 0,
  });
  const rows = useMemo(() => {
    const all = data?.pages.flatMap((page) => page.approvals) ?? [];
    return history ? all.filter((each) => each.status !== "pending") : all;
  }, [data, history]);
  const [cursor, setCursor] = useState<string | null>(null);
  const at = Math.max(0, rows.findIndex((row) => row.id === cursor));
  const current = rows[at];
  const kept = useMemo(() => [at], [at]); // the one with the focus stays, however far somebody scrolls
  const counts = data?.pages[0]?.counts;

  const fresh = useNewRows(rows, JSON.stringify(queryKey));
  // What belongs here from now on is counted, and put in when asked for; what somebody else answers goes.
  useEvents("approval.", (events) => {
    const ids = (isAnswer: boolean) =>
      events.filter((event) => "approvalId" in event.data && (event.name === "approval.answered") === isAnswer).map((event) => String(event.data["approvalId"]));
    const [comes, goes] = history ? [ids(true), []] : [ids(false), ids(true)];
    const isOld = events.some((event) => event.name === "reset") || goes.some((id) => rows.some((row) => row.id === id && !busy.has(id)));
    if (isOld || (comes.length > 0 && rows.length === 0)) void reread(client, queryKey);
    fresh.add(comes, goes);
  });
  const reload = async () => {
    fresh.clear();
    await reread(client, ["approvals"], queryKey);
  };
  const answer = async (ids: string[], body: { approved?: boolean; reason?: string; answer?: string }) => {
    setBusy((now) => new Set([...now, ...ids]));
    const next = rows[at + 1] ?? rows[at - 1];
    try {
      if (ids.length === 1) {
        await api.post(`/api/approvals/${encodeURIComponent(ids[0]!)}`, body);
        const refused = isQuestion(rows.find((row) => row.id === ids[0])) ? "Declined" : "Denied";
        toast(body.answer !== undefined ? "Answered" : body.approved === true ? "Approved" : refused);
      } else {
        const { results } = await api.post<{ results: { id: string; error: { message: string } | null }[] }>("/api/approvals/answers", { ids, ...body });
        const failed = results.filter((each) => each.error !== null);
        toast(`${results.length - failed.length} ${body.approved === true ? "approved" : "denied"}`);
        if (failed.length > 0) toast(`${failed.length} could not be answered: ${failed[0]!.error!.message}`, "bad");
      }
      setPicked(new Set());
      if (next !== undefined && ids.includes(current?.id ?? "")) {
        takesFocus.current = { id: next.id, isAnswer: false };
        setCursor(next.id);
      }
    } catch (failure) {
      toastError(failure);
    } finally {
      await reload();
      setBusy((now) => new Set([...now].filter((id) => !ids.includes(id))));
    }
  };
  const allowAlways = async (approval: Approval) => {
    setAlways(null);
    try {
      await api.post("/api/policy/rules", { approvalId: approval.id });
      toast(`${approval.operations.join(", ")} is always allowed`);
    } catch (failure) {
      toastError(failure);
      return;
    }
    await answer([approval.id], { approved: true });
  };
  const move = (step: number) => {
    const row = rows[Math.max(0, Math.min(rows.length - 1, at + step))];
    if (row === undefined) return;
    takesFocus.current = { id: row.id, isAnswer: false };
    setCursor(row.id);
    list.current?.scrollToIndex(rows.indexOf(row), { align: "nearest" });
  };
  /** Move the focus to the first answer of the question under the cursor. */
  const focusAnswer = () => {
    if (current === undefined || !isQuestion(current)) return;
    takesFocus.current = { id: current.id, isAnswer: true };
    redraw();
  };
  const pick = (id: string, on: boolean) =>
    setPicked((now) => {
      const next = new Set(now);
      if (on && next.size < MAX_BULK) next.add(id);
      else next.delete(id);
      return next;
    });
  const isRead = (row: Approval) => row.items.every((item, at) => !hasToBeOpened(item) || shown.has(`${row.id}/${at}`));
  const approve = (ids: string[]) => {
    const unread = rows.filter((row) => ids.includes(row.id) && !isRead(row)).length;
    if (unread === 0) void answer(ids, { approved: true });
    else toast(`${ids.length === 1 ? "Its arguments are" : `The arguments of ${count(unread)} are`} not all shown: open them first (o).`, "bad");
  };
  const isApproval = (row: Approval | undefined): row is Approval =>
    row !== undefined && row.status === "pending" && !isPast(row.expiresAt) && row.mayAnswer && row.question === null;
  useKeys("Inbox", {
    j: ["next request", () => move(1)],
    k: ["previous request", () => move(-1)],
    Enter: ["answer the question", () => focusAnswer()],
    a: ["approve", () => isApproval(current) && approve([current.id])],
    o: ["open more of the arguments", showMore],
    d: ["deny or decline, with a reason", () => current?.mayAnswer === true && !isPast(current.expiresAt) && setDenying([current.id])],
    x: ["select for several at once", () => isApproval(current) && pick(current.id, !picked.has(current.id))],
    A: ["always allow", () => isApproval(current) && current.mayAlwaysAllow && isRead(current) && setAlways(current)],
    h: ["history, or what waits", () => setParams({ view: history ? null : "history" })],
    Escape: ["clear the selection", () => setPicked(new Set())],
  });
  const isAtEnd = useRef(false);
  const loadMore = () => {
    const handle = list.current;
    if (handle === null) return;
    isAtEnd.current = handle.findItemIndex(handle.scrollOffset + handle.viewportSize) >= rows.length - END_ROWS;
    if (isAtEnd.current && hasNextPage && !isFetching) void fetchNextPage();
  };
  // While the requests are read anew no page is loaded behind them: it is once they are there.
  useEffect(() => {
    if (isAtEnd.current && error === null) loadMore();
  });
  const selectable = rows.filter(isApproval).slice(0, MAX_BULK);
  const oldest = rows[0];
  const approved = (counts?.["approved"] ?? 0) + (counts?.["used"] ?? 0);
  const answered = approved + (counts?.["denied"] ?? 0) + (counts?.["expired"] ?? 0);
  return (
    <>
      <ScreenHeader
        title="Inbox"
        sub={
          narrow
            ? undefined
            : history
            ? "answered requests"
            : counts !== undefined && `${count(counts["pending"] ?? 0)} waiting${oldest !== undefined ? ` · oldest ${relativeTime(oldest.createdAt)}` : ""}`
        }
      >
        {!narrow && rows.length > 0 && !history && (
          <span className="inbox-hint muted">
            <Kbd>j</Kbd> <Kbd>k</Kbd> move ·{" "}
            {isQuestion(current) ? (
              <>
                <Kbd>Enter</Kbd> answer · <Kbd>d</Kbd> decline
              </>
            ) : (
              <>
                <Kbd>a</Kbd> approve · <Kbd>d</Kbd> deny
              </>
            )}
          </span>
        )}
        <Button look="quiet" onClick={() => setRules(true)}>
          {narrow ? "Rules" : "Always allowed"}
        </Button>
        <Button aria-pressed={history} onClick={() => setParams({ view: history ? null : "history", operation: null })}>
          {history ? "Waiting" : "History"}
        </Button>
      </ScreenHeader>
      {(picked.size > 0 || operation !== "") && (
        <div className="toolbar" role="region" aria-label="Several at once">
          {operation !== "" && (
            <Button icon="x" onClick={() => setParams({ operation: null })}>
              only {operation}
            </Button>
          )}
          {picked.size > 0 && (
            <>
              <span>{count(picked.size)} selected</span>
              <Button icon="check" onClick={() => approve([...picked])}>
                Approve {count(picked.size)}
              </Button>
              <Button look="danger" onClick={() => setDenying([...picked])}>
                Deny {count(picked.size)}…
              </Button>
              {picked.size < selectable.length && (
                <Button look="quiet" onClick={() => setPicked(new Set(selectable.map((row) => row.id)))}>
                  Select all {count(selectable.length)}
                </Button>
              )}
            </>
          )}
        </div>
      )}
      <NewRows count={rows.length === 0 ? 0 : fresh.count} onShow={() => void reload()} />
      {error !== null && (
        <div className="pad">
          <ErrorNotice error={error} onRetry={() => void refetch()} />
        </div>
      )}
      {isLoading && <Loading />}
      {!isLoading && error === null && rows.length === 0 && <Nothing history={history} />}
      {rows.length > 0 && (
        <VList
          ref={list}
          className="inbox-list"
          role="feed"
          aria-label={history ? "Answered requests" : "Waiting requests"}
          data={rows}
          keepMounted={kept}
          onScroll={loadMore}
        >
          {(row, index) => (
            <Entry
              key={row.id}
              approval={row}
              current={row.id === current?.id}
              takesFocus={takesFocus}
              place={index + 1}
              of={hasNextPage ? -1 : rows.length}
              primary={!history && row.id === current?.id && index === at}
              isRead={isRead(row)}
              onShownWhole={(item) => setShown((now) => (now.has(`${row.id}/${item}`) ? now : new Set([...now, `${row.id}/${item}`])))}
              picked={picked.has(row.id)}
              busy={busy.has(row.id)}
              onCurrent={() => setCursor(row.id)}
              onPick={(on) => pick(row.id, on)}
              onApprove={() => approve([row.id])}
              onDeny={() => setDenying([row.id])}
              onAlways={() => setAlways(row)}
              onAnswer={(text) => void answer([row.id], { answer: text })}
            />
          )}
        </VList>
      )}
      {!history && counts !== undefined && answered > 0 && (
        <p className="inbox-foot muted small">
          Asked in the last 24 hours: {count(approved)} approved, {count(counts["denied"] ?? 0)} denied, {count(counts["expired"] ?? 0)} expired
        </p>
      )}
      <DenyDialog
        ids={denying}
        what={denying?.length === 1 && isQuestion(rows.find((row) => row.id === denying[0])) ? "Decline" : "Deny"}
        onClose={() => setDenying(null)}
        onDeny={(reason) => {
          const ids = denying ?? [];
          setDenying(null);
          void answer(ids, { approved: false, ...(reason === "" ? {} : { reason }) });
        }}
      />
      <AlwaysDialog approval={always} onClose={() => setAlways(null)} onAllow={(approval) => void allowAlways(approval)} />
      <RulesDialog open={rules} onClose={() => setRules(false)} />
    </>
  );
}

function isQuestion(row: Approval | undefined): boolean {
  return row !== undefined && row.question !== null;
}

/** Open what is folded of the arguments under the cursor, a part at a time. */
function showMore(): void {
  document.querySelector<HTMLElement>(".inbox-current [data-more]")?.click();
}

interface Denying {
  ids: string[] | null;
  /** An approval is denied, a question declined. */
  what: "Deny" | "Decline";
  onClose: () => void;
  onDeny: (reason: string) => void;
}

function DenyDialog({ ids, what, onClose, onDeny }: Denying) {
  return (
    <Dialog open={ids !== null} onClose={onClose} title={(ids?.length ?? 0) > 1 ? `Deny ${ids!.length} requests` : what}>
      {ids !== null && <DenyForm what={what} onClose={onClose} onDeny={onDeny} />}
    </Dialog>
  );
}

function DenyForm({ what, onClose, onDeny }: Omit<Denying, "ids">) {
  const [reason, setReason] = useState("");
  return (
    <form
      className="inbox-form"
      onSubmit={(event) => {
        event.preventDefault();
        onDeny(reason.trim());
      }}
    >
      <label htmlFor="deny-reason">Why? Whoever asked reads it; a model can go on from it.</label>
      <input id="deny-reason" className="input" autoFocus maxLength={2000} value={reason} placeholder="optional" onChange={(event) => setReason(event.target.value)} />
      <div className="inbox-form-actions">
        <Button onClick={onClose}>Cancel</Button>
        <Button look="danger" type="submit">
          {what}
        </Button>
      </div>
    </form>
  );
}

function AlwaysDialog(props: { approval: Approval | null; onClose: () => void; onAllow: (approval: Approval) => void }) {
  const { approval } = props;
  return (
    <Dialog
      open={approval !== null}
      onClose={props.onClose}
      title="Always allow"
      actions={
        <>
          <Button onClick={props.onClose}>Cancel</Button>
          <Button look="danger" onClick={() => approval !== null && props.onAllow(approval)}>
            Always allow
          </Button>
        </>
      }
    >
      {approval !== null && (
        <div className="inbox-form">
          <p>
            <b className="mono">{approval.operations.join(", ")}</b> runs without being asked about from now on, <b>whatever its arguments</b>, for calls of{" "}
            <b>{approval.owner}</b>
            {approval.agent === null ? " without an agent" : (
              <>
                {" "}
                through <b>{approval.agent}</b>
              </>
            )}
            .
          </p>
          <p className="muted small">
            It is asked about again when its definition changes or something else provides it, and what a rule denies stays denied. “Always allowed” at the top lists and revokes such rules.
          </p>
        </div>
      )}
    </Dialog>
  );
}

function Nothing({ history }: { history: boolean }) {
  if (history) {
    return (
      <Empty icon="inbox" title="Nothing was answered yet">
        <p>Approvals and questions stay here once they are answered or have expired.</p>
      </Empty>
    );
  }
  return (
    <Empty icon="inbox" title="Nothing waits for you">
      <p>
        Calls that a rule asks about wait here, and so do questions of agents. A rule looks like this in <code>dragoman.yaml</code>:
      </p>
      <pre className="inbox-example">{"policy:\n  - ask: mail.send\n    reason: others see it"}</pre>
    </Empty>
  );
}
