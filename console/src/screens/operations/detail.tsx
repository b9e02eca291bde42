/** One operation: what it does, who decides, a form to run it, and how its calls went. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "wouter";
import { api } from "../../api/client";
import { useInvalidate } from "../../api/events";
import { useSession } from "../../api/session";
import {
  Chip,
  count,
  Duration,
  duration,
  ErrorNotice,
  JsonView,
  Kind,
  Loading,
  Status,
  Time,
  useUrlState,
  type Tone,
  spellTurns,
} from "../../components";
import { CallForm, jsonError } from "./call_form";
import type { OperationDetail, PolicyAnswer, StatisticsAnswer } from "./types";

export const EFFECTS: Record<string, string> = {
  read: "changes nothing",
  idempotent: "may be repeated",
  once: "acts again each time",
};

export function Detail({ id }: { id: string }) {
  const path = `/api/operations/${encodeURIComponent(id)}`;
  const { data, error, refetch } = useQuery({
    queryKey: ["operations", "one", id],
    queryFn: ({ signal }) => api.get<OperationDetail>(path, { signal }),
  });
  if (error !== null) return <ErrorNotice error={error} onRetry={() => void refetch()} />;
  if (data === undefined) return <Loading />;
  return (
    <>
      <div className="operations-title">
        <h2 className="mono">{data.id}</h2>
        <Kind kind={data.effect === "read" ? "tool" : "op"}>{data.effect}</Kind>
        <span className="muted small">
          {EFFECTS[data.effect]}
          {data.effectClaimed === true && ", as its server says"} · {data.source}
        </span>
      </div>
      <p className="operations-description">{flow(data.description)}</p>
      <Policy id={id} />
      <Run key={id} operation={data} />
      <Statistics id={id} />
      <details className="operations-schema">
        <summary>Schemas</summary>
        <h3>Input</h3>
        <JsonView value={data.inputSchema} label="Input schema" />
        {data.outputSchema !== null && (
          <>
            <h3>Output</h3>
            <JsonView value={data.outputSchema} label="Output schema" />
          </>
        )}
      </details>
    </>
  );
}

const DECISIONS: Record<string, [tone: Tone, word: string]> = {
  allow: ["ok", "allowed"],
  ask: ["wait", "asks a person"],
  deny: ["bad", "denied"],
};

function Policy({ id }: { id: string }) {
  const session = useSession();
  const [agent, setAgent] = useState("");
  const agents = useQuery({
    queryKey: ["agents"],
    queryFn: ({ signal }) => api.get<{ agents: { name: string }[] }>("/api/agents", { signal }),
    enabled: session.can("chat"),
  });
  const { data, error } = useQuery({
    queryKey: ["operations", "policy", id, agent],
    queryFn: () => api.post<PolicyAnswer>("/api/policy/explain", { operation: id, agent: agent === "" ? null : agent }),
  });
  if (error !== null) return <ErrorNotice error={error} />;
  const [tone, word] = DECISIONS[data?.decision ?? ""] ?? ["muted", "…"];
  return (
    <section className="operations-policy" aria-label="Policy">
      <div>
        <Chip tone={tone}>{word}</Chip>
        <label>
          for{" "}
          <select className="select" value={agent} onChange={(event) => setAgent(event.target.value)} aria-label="Who calls it">
            <option value="">you</option>
            {(agents.data?.agents ?? []).map((each) => (
              <option key={each.name} value={each.name}>
                the agent {each.name}
              </option>
            ))}
          </select>
        </label>
        {data !== undefined && (
          <span>
            by <code>{data.source}</code>
          </span>
        )}
      </div>
      {data?.reason != null && <p>{data.reason}</p>}
      {data !== undefined && data.matches.length > 1 && (
        <details>
          <summary>{data.matches.length} rules match; the first decides</summary>
          <ol>
            {data.matches.map((match, at) => (
              <li key={at}>
                {match.decision} {match.pattern !== null && <code>{match.pattern}</code>}{" "}
                <span className="muted small">{match.source}</span>
              </li>
            ))}
          </ol>
        </details>
      )}
    </section>
  );
}

function Run({ operation }: { operation: OperationDetail }) {
  const [params] = useUrlState();
  const given = params.get("input");
  return <CallForm operation={operation} input={given !== null && jsonError(given) === null ? JSON.parse(given) : undefined} />;
}

function Statistics({ id }: { id: string }) {
  useInvalidate("run.", ["operations", "stats", id]);
  const { data, error } = useQuery({
    queryKey: ["operations", "stats", id],
    queryFn: ({ signal }) =>
      api.get<StatisticsAnswer>(`/api/operations/${encodeURIComponent(id)}/stats`, { query: { since: "7d" }, signal }),
  });
  if (error !== null) return <ErrorNotice error={error} />;
  if (data === undefined) return null;
  const failed = (data.byStatus["failed"] ?? 0) + (data.byStatus["uncertain"] ?? 0);
  return (
    <section aria-label="Last calls">
      <h3>Last 7 days</h3>
      {data.calls === 0 ? (
        <p className="muted small">Nobody has called it in this time.</p>
      ) : (
        <p className="num">
          {count(data.calls)}
          {data.capped && "+"} {data.calls === 1 ? "call" : "calls"}
          {failed > 0 && <span className="operations-problem"> · {count(failed)} failed</span>}
          {(data.byStatus["denied"] ?? 0) > 0 && ` · ${count(data.byStatus["denied"])} denied`}
          {data.p50 !== null && ` · p50 ${duration(data.p50)} · p95 ${duration(data.p95)}`}
        </p>
      )}
      <ul className="operations-calls">
        {data.lastCalls.map((call) => (
          <li key={call.id}>
            <Link href={`/runs/${encodeURIComponent(call.id)}`} className="mono">
              {call.id}
            </Link>
            <Status status={call.status} />
            <span className="muted small">{spellTurns(call.owner)}</span>
            <span className="muted small right">
              <Duration seconds={call.duration} /> · <Time at={call.startedAt} />
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}

/** A docstring's paragraphs without the line ends of its source; items and indented lines stay lines. */
function flow(text: string): string {
  return text.replace(/(\S)\n(?=[^\s*\-\d])/g, "$1 ");
}
