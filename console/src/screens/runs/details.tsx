/** One call: why it failed, what went in and came out, what allowed it. Loaded when it is looked at. */
import { useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { Link } from "wouter";
import { api, apiUrl } from "../../api/client";
import { useInvalidate } from "../../api/events";
import { useSession } from "../../api/session";
import { Button, Details, ErrorNotice, JsonView, Loading, Money, Status, Time, Tokens, copyText, count, duration, spellTurns, toastError } from "../../components";
import { CallAgain } from "./call_again";
import type { TreeNode } from "./tree";
import { isBad, ruleText, type CallDetails, type ModelDetails, type Root } from "./types";

const LOOK_DELAY = 250; // ms: moving through a tree asks for nothing

export function useSettled<T>(value: T, delay = LOOK_DELAY): T {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), delay);
    return () => clearTimeout(timer);
  }, [value, delay]);
  return settled;
}

/** `onLoadBelow` reads the calls below this one, where the tree does not have them all. */
export function DetailsPane({ node, root, onLoadBelow }: { node: TreeNode; root: Root; onLoadBelow: (() => Promise<void>) | null }) {
  if (node.id === root.id && root.kind === "run") return <RunDetails root={root} />;
  if (node.id.startsWith("step:")) {
    return (
      <div className="runs-pane">
        <h2>{spellTurns(node.name)}</h2>
        <p className="muted">The model call of this step is under way, or was not recorded.</p>
      </div>
    );
  }
  if (node.kind === "task" || node.kind === "run") return <OfTask node={node} onLoadBelow={onLoadBelow} />;
  return <Loaded node={node} onLoadBelow={onLoadBelow} />;
}

function Loaded({ node, onLoadBelow }: { node: TreeNode; onLoadBelow: (() => Promise<void>) | null }) {
  const id = useSettled(node.id);
  const { data, error, refetch } = useQuery({
    queryKey: ["call", id, node.id === id ? node.status : ""],
    queryFn: ({ signal }) => api.get<CallDetails | ModelDetails>(`/api/calls/${encodeURIComponent(id)}`, { signal }),
    staleTime: 60_000,
    placeholderData: (before, query) => (query?.queryKey[1] === id ? before : undefined),
  });
  useInvalidate("approval.", ["call", id]);
  return (
    <div className="runs-pane">
      <h2>{spellTurns(node.name)}</h2>
      <p className="runs-line">
        <Status status={node.status === "pending" ? "waiting" : node.status} />
        <span className="muted">
          {node.effect !== null && `effect ${node.effect}`}
          {node.attempts !== null && node.attempts > 1 && ` · ${node.attempts} attempts`}
          {node.step !== null && node.kind === "model" && `step ${node.step}`}
        </span>
      </p>
      {onLoadBelow !== null && <LoadBelow onLoad={onLoadBelow} />}
      {error !== null && <ErrorNotice error={error} onRetry={() => void refetch()} />}
      {error === null && (data === undefined || id !== node.id) && <Loading />}
      {data !== undefined && id === node.id && (data.kind === "model" ? <OfModel call={data} /> : <OfCall call={data} />)}
    </div>
  );
}

function LoadBelow({ onLoad }: { onLoad: () => Promise<void> }) {
  const [loading, setLoading] = useState(false);
  const load = () => {
    setLoading(true);
    void onLoad()
      .catch(toastError)
      .finally(() => setLoading(false));
  };
  return (
    <p>
      <Button busy={loading} onClick={load}>
        Load what is below
      </Button>
    </p>
  );
}

/** A task that the run gave to a team, or a run that answered it. */
function OfTask({ node, onLoadBelow }: { node: TreeNode; onLoadBelow: (() => Promise<void>) | null }) {
  const isTask = node.kind === "task";
  const path = isTask ? `/teams?tab=tasks&task=${encodeURIComponent(node.id)}` : `/runs/${encodeURIComponent(node.id)}`;
  return (
    <div className="runs-pane">
      <h2>{spellTurns(isTask ? `Task of the team ${node.name}` : `Run of ${node.name}`)}</h2>
      <p className="runs-line">
        <Status status={node.status === "pending" ? "waiting" : node.status} />
      </p>
      {node.detail !== null && <p>{spellTurns(node.detail)}</p>}
      {node.error !== null && <p className="runs-error">{node.error}</p>}
      <Details
        rows={[
          ["started", <Time at={node.startedAt} />],
          ["duration", duration(node.duration)],
          ["cost", <Money value={node.cost} />],
          ["id", <code>{node.id}</code>],
        ]}
      />
      {onLoadBelow !== null && <LoadBelow onLoad={onLoadBelow} />}
      <p>
        <Link className="btn" href={path}>
          {isTask ? "Open the task" : "Open the run"}
        </Link>
      </p>
    </div>
  );
}

function OfCall({ call }: { call: CallDetails }) {
  const session = useSession();
  const [again, setAgain] = useState(false);
  const canCall = session.can("operations") && !call.operation.startsWith("hub.");
  return (
    <>
      {call.error !== null && (
        <>
          <h3>{isBad(call.status) ? "Why" : "Note"}</h3>
          <p className={isBad(call.status) ? "runs-error" : undefined}>{call.error.message}</p>
          {call.error.hint && <p className="muted small">{call.error.hint}</p>}
        </>
      )}
      {call.status === "pending" && (
        <p>
          <Link href="/inbox">Answer it in the inbox</Link>
        </p>
      )}
      <h3>Input</h3>
      <JsonView value={call.input} label="input" isSpelt />
      {call.status === "done" && (
        <>
          <h3>Result</h3>
          <JsonView value={call.result} label="result" />
        </>
      )}
      {call.notes.length > 0 && (
        <>
          <h3>Notes</h3>
          <ul className="runs-notes">
            {call.notes.map((note) => (
              <li key={note}>{note}</li>
            ))}
          </ul>
        </>
      )}
      <h3>Details</h3>
      <Details rows={rowsOfCall(call)} />
      <div className="runs-actions">
        {canCall && (
          <Button icon="play" onClick={() => setAgain(true)}>
            Call again…
          </Button>
        )}
        <Button icon="copy" onClick={() => void copyText(curlOfCall(call))}>
          Copy as curl
        </Button>
        <a className="btn" href={apiUrl(`/api/calls/${encodeURIComponent(call.id)}/export`)} download>
          Export
        </a>
      </div>
      <CallAgain call={call} open={again} onClose={() => setAgain(false)} />
    </>
  );
}

function rowsOfCall(call: CallDetails): [string, React.ReactNode][] {
  const rows: [string, React.ReactNode][] = [];
  const { policy, approval, below } = call;
  if (policy === null) rows.push(["policy", <span className="muted">no rule fits; the default allowed it</span>]);
  else
    rows.push([
      "policy",
      <>
        {{ allow: "allowed", ask: "asked", deny: "denied" }[policy.decision] ?? policy.decision} by <code>{ruleText(policy)}</code>
        {policy.standing !== undefined && " · always allowed since"}
        {policy.rule?.reason && <div className="muted">{policy.rule.reason}</div>}
      </>,
    ]);
  if (approval !== null)
    rows.push([
      "approval",
      <>
        {approval.status}
        {approval.answeredBy !== null && ` by ${approval.answeredBy} `}
        {approval.answeredAt !== null && <Time at={approval.answeredAt} />}
        {approval.reason !== null && <div className="muted">“{approval.reason}”</div>}
      </>,
    ]);
  rows.push(["owner", call.owner]);
  if (call.agent !== null) rows.push(["agent", call.agent]);
  if (call.source !== null) rows.push(["source", call.source]);
  rows.push(["started", <Time at={call.startedAt} />]);
  rows.push(["duration", duration(call.duration)]);
  if (call.attempts !== null) rows.push(["attempts", count(call.attempts)]);
  if (below !== null && (below.modelCalls > 0 || below.calls > 1)) {
    rows.push(["below", `${count(below.calls - 1)} calls, ${count(below.failed)} failed`]);
    if (below.modelCalls > 0) rows.push(["tokens", <Tokens input={below.inputTokens} output={below.outputTokens} />]);
  }
  rows.push(["cost", <Money value={call.cost ?? below?.cost ?? null} />]);
  if (call.idempotencyKey !== null) rows.push(["idempotency", <code>{call.idempotencyKey}</code>]);
  rows.push(["id", <code>{call.id}</code>]);
  return rows;
}

function OfModel({ call }: { call: ModelDetails }) {
  const { usage } = call;
  const number = (name: string) => (typeof usage[name] === "number" ? (usage[name] as number) : null);
  return (
    <>
      {call.error !== null && (
        <>
          <h3>Why</h3>
          <p className="runs-error">
            {call.error}
            {call.upstreamStatus !== null && `: the provider answered ${call.upstreamStatus}`}
          </p>
        </>
      )}
      <h3>Usage</h3>
      <Details
        rows={[
          ["input", `${count(number("inputTokens"))} tokens`],
          ["from cache", count(number("cachedInputTokens"))],
          ["output", `${count(number("outputTokens"))} tokens`],
          ["reasoning", count(number("reasoningTokens"))],
          ["cost", <Money value={call.cost} />],
          ["priced as", call.priceModel ?? "–"],
          ["estimated", usage["estimated"] === true ? "yes: the provider did not count" : "no"],
        ]}
      />
      <h3>Details</h3>
      <Details
        rows={[
          ["provider", call.provider ?? "–"],
          ["model", call.modelServed ?? "–"],
          ["requested", call.modelAsked ?? "–"],
          ["first token", duration(call.firstByte)],
          ["duration", duration(call.duration)],
          ["finish reason", call.finishReason ?? "–"],
          ["API", call.door ?? "–"],
          ["started", <Time at={call.startedAt} />],
          ["id", <code>{call.id}</code>],
        ]}
      />
      <p className="muted small">What went to the model is not stored: the Prompt tab shows the conversation that it was made from.</p>
    </>
  );
}

function RunDetails({ root }: { root: Root }) {
  return (
    <div className="runs-pane">
      <h2>{spellTurns(root.name)}</h2>
      <p className="runs-line">
        <Status status={root.status} />
      </p>
      {root.error !== null && (
        <>
          <h3>Why</h3>
          <p className="runs-error">{root.error}</p>
        </>
      )}
      <h3>Details</h3>
      <Details
        rows={[
          ["session", root.sessionId === null ? "–" : <Link href={`/chat/${encodeURIComponent(root.sessionId)}`}>{spellTurns(root.sessionTitle ?? root.sessionId)}</Link>],
          ["owner", root.owner],
          ["agent", root.agent ?? "–"],
          ["API", root.door ?? "–"],
          ["started", <Time at={root.startedAt} />],
          ["finish reason", root.finishReason ?? "–"],
          ["model calls", count(root.modelCalls)],
          ["without a price", count(root.unpriced)],
          ["id", <code>{root.id}</code>],
        ]}
      />
    </div>
  );
}

/** The request that makes a call again; the key comes from the environment, never from here. */
export function curlOfCall(call: { operation: string; input: unknown }): string {
  const body = JSON.stringify(call.input ?? {}).replaceAll("'", "'\\''");
  const url = apiUrl(`/api/operations/${encodeURIComponent(call.operation)}/call`);
  return `curl -X POST '${url}' \\\n  -H "Authorization: Bearer $DRAGOMAN_KEY" -H 'Content-Type: application/json' \\\n  -d '${body}'`;
}
