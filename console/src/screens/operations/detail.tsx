/** One operation: what it does, who decides, a form to run it, and how its calls went. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { Link } from "wouter";
import { api } from "../../api/client";
import { useInvalidate } from "../../api/events";
import { useSession } from "../../api/session";
import {
  Button,
  Chip,
  count,
  Duration,
  duration,
  ErrorNotice,
  JsonView,
  Kind,
  Loading,
  Status,
  Tabs,
  Time,
  toastError,
  useUrlState,
  type Tone,
} from "../../components";
import { SchemaForm } from "./form";
import { Result } from "./result";
import { initialValue } from "./schema";
import type { OperationDetail, Outcome, PolicyAnswer, StatisticsAnswer } from "./types";

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
      <p className="operations-description">{data.description}</p>
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
  const client = useQueryClient();
  const [params] = useUrlState();
  const [tab, setTab] = useState("form");
  const [value, setValue] = useState(() => firstInput(operation, params.get("input")));
  const [text, setText] = useState("");
  const [outcome, setOutcome] = useState<{ outcome: Outcome; seconds: number } | null>(null);
  const [calling, setCalling] = useState<AbortController | null>(null);
  const current = useRef<AbortController | null>(null);
  useEffect(() => () => current.current?.abort(), []); // a call ends with its page
  const textError = tab === "json" ? jsonError(text) : null;
  const show = (next: string) => {
    if (next === "json") setText(JSON.stringify(value, null, 2));
    else if (jsonError(text) === null) setValue(JSON.parse(text) as Record<string, unknown>);
    setTab(next);
  };
  const run = async () => {
    const controller = (current.current = new AbortController());
    setCalling(controller);
    const began = performance.now();
    try {
      const input = tab === "json" ? (JSON.parse(text) as unknown) : value;
      const path = `/api/operations/${encodeURIComponent(operation.id)}/call`;
      const answer = await api.post<Outcome>(path, input, { signal: controller.signal });
      setOutcome({ outcome: answer, seconds: (performance.now() - began) / 1000 });
    } catch (failed) {
      if (!controller.signal.aborted) toastError(failed);
    }
    setCalling(null);
    void client.invalidateQueries({ queryKey: ["operations", "stats", operation.id] });
  };
  const problems = Object.fromEntries(
    (outcome?.outcome.error?.problems ?? []).map((each) => [each.path, `expected ${each.expected}, got ${each.got}`]),
  );
  return (
    <section className="operations-run" aria-label="Run">
      <Tabs
        label="How to write the input"
        items={[
          { id: "form", label: "Form" },
          { id: "json", label: "JSON" },
        ]}
        active={tab}
        onChange={show}
      />
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (textError === null && calling === null) void run();
        }}
      >
        {tab === "form" ? (
          <SchemaForm schema={operation.inputSchema} value={value} onChange={setValue} problems={problems} />
        ) : (
          <div className="operations-field">
            <textarea
              className="textarea mono"
              rows={8}
              spellCheck={false}
              aria-label="Input as JSON"
              value={text}
              onChange={(event) => setText(event.target.value)}
            />
            {textError !== null && <p className="operations-problem small">{textError}</p>}
          </div>
        )}
        <div className="operations-go">
          <Button look="primary" icon="play" type="submit" busy={calling !== null} disabled={textError !== null}>
            Run
          </Button>
          {calling !== null && (
            <Button icon="stop" onClick={() => calling.abort()}>
              Stop
            </Button>
          )}
          {operation.effect === "once" && <span className="muted small">It acts each time you press this.</span>}
        </div>
      </form>
      {outcome !== null && <Result outcome={outcome.outcome} seconds={outcome.seconds} />}
    </section>
  );
}

function firstInput(operation: OperationDetail, given: string | null): Record<string, unknown> {
  if (given !== null && jsonError(given) === null) return JSON.parse(given) as Record<string, unknown>;
  return (initialValue(operation.inputSchema, operation.inputSchema) ?? {}) as Record<string, unknown>;
}

function jsonError(text: string): string | null {
  try {
    const value = JSON.parse(text) as unknown;
    return typeof value === "object" && value !== null && !Array.isArray(value) ? null : "The input is an object: {…}";
  } catch (failed) {
    return failed instanceof Error ? failed.message : "it is not JSON";
  }
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
          {data.capped && "+"} calls{failed > 0 && <span className="operations-problem"> · {count(failed)} failed</span>}
          {(data.byStatus["denied"] ?? 0) > 0 && ` · ${count(data.byStatus["denied"])} denied`} · p50 {duration(data.p50)} · p95{" "}
          {duration(data.p95)}
        </p>
      )}
      <ul className="operations-calls">
        {data.lastCalls.map((call) => (
          <li key={call.id}>
            <Link href={`/runs/${encodeURIComponent(call.id)}`} className="mono">
              {call.id}
            </Link>
            <Status status={call.status} />
            <span className="muted small">{call.owner}</span>
            <span className="muted small right">
              <Duration seconds={call.duration} /> · <Time at={call.startedAt} />
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}
