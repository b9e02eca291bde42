/** MCP servers: their state, their last lines, and the definitions that wait for approval. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api } from "../../api/client";
import { reread, useInvalidate } from "../../api/events";
import {
  Button,
  Chip,
  Details,
  Empty,
  ErrorNotice,
  Loading,
  Time,
  toast,
  toastError,
  useUrlState,
  type IconName,
  type Tone,
} from "../../components";
import { DiffView } from "./diff_view";
import type { DefinitionChange, McpServer } from "./types";

const STATES: Record<McpServer["state"], [tone: Tone, icon: IconName, word: string]> = {
  ready: ["ok", "check", "ready"],
  starting: ["run", "play", "starting"],
  lazy: ["muted", "wait", "starts when needed"],
  failed: ["bad", "x", "failed"],
  quarantined: ["bad", "warn", "quarantined"],
  disabled: ["muted", "stop", "disabled"],
};

export function State({ state }: { state: McpServer["state"] }) {
  const [tone, icon, word] = STATES[state] ?? ["muted", "dots", state];
  return (
    <Chip tone={tone} icon={icon}>
      {word}
    </Chip>
  );
}

export function useServers(enabled = true) {
  useInvalidate("operations.changed", ["servers"]);
  return useQuery({
    queryKey: ["servers"],
    queryFn: ({ signal }) => api.get<{ servers: McpServer[] }>("/api/mcp/servers", { signal }),
    enabled,
  });
}

export function Servers() {
  const [params, setParams] = useUrlState();
  const { data, error, refetch } = useServers();
  const picked = params.get("server");
  if (error !== null) return <ErrorNotice error={error} onRetry={() => void refetch()} />;
  if (data === undefined) return <Loading />;
  if (data.servers.length === 0)
    return (
      <Empty icon="operations" title="This hub uses no MCP servers yet">
        <p>
          An MCP server brings tools of others: issues, documents, browsers. Each of its tools becomes an operation that your
          policy decides about. Name one under <code>mcp_servers</code> in dragoman.yaml, or add it while the hub runs:
        </p>
        <pre>dragoman servers add docs --url https://docs.example.com/mcp</pre>
      </Empty>
    );
  return (
    <ul className="operations-servers">
      {data.servers.map((server) => (
        <li key={server.name} className="card">
          <button
            type="button"
            className="operations-server"
            aria-expanded={picked === server.name}
            onClick={() => setParams({ server: picked === server.name ? null : server.name })}
          >
            <b className="mono">{server.name}</b>
            <State state={server.state} />
            {server.waiting > 0 && (
              <Chip tone="wait" icon="wait">
                {server.waiting} to approve
              </Chip>
            )}
            <span className="muted small">
              {server.tools} operations · <Time at={server.since} />
            </span>
          </button>
          {server.error !== undefined && <p className="operations-problem small">{server.error}</p>}
          {picked === server.name && <Server server={server} />}
        </li>
      ))}
    </ul>
  );
}

function Server({ server }: { server: McpServer }) {
  const client = useQueryClient();
  const path = `/api/mcp/servers/${encodeURIComponent(server.name)}`;
  const { data, error } = useQuery({
    queryKey: ["servers", server.name],
    queryFn: ({ signal }) => api.get<{ changes: DefinitionChange[] }>(path, { signal }),
  });
  const log = useQuery({
    queryKey: ["servers", server.name, "log"],
    queryFn: ({ signal }) => api.get<{ lines: { time: number; message: string }[] }>(`${path}/log`, { signal }),
  });
  const refresh = () => reread(client, ["servers"]);
  const act = async (send: () => Promise<unknown>, text: string) => {
    try {
      await send();
      toast(text);
    } catch (failed) {
      toastError(failed); // 409: a definition has changed since it was shown
    }
    await refresh();
    await reread(client, ["operations"]);
  };
  const changes = data?.changes ?? [];
  const approve = (chosen: DefinitionChange[]) =>
    act(
      () => api.post(`${path}/approve`, { tools: Object.fromEntries(chosen.map((each) => [each.name, each.hash])) }),
      chosen.length === 1 ? "The definition is approved." : `${chosen.length} definitions are approved.`,
    );
  return (
    <div className="operations-server-body">
      <div className="operations-go">
        <Button icon="again" onClick={() => void act(() => api.post(`${path}/reconnect`), "It is reconnecting.")}>
          Reconnect
        </Button>
        <Button onClick={() => void refresh()}>Refresh</Button>
      </div>
      <Details
        rows={[
          ["Server", server.title ?? "–"],
          ["Protocol", server.protocol ?? "–"],
          ...(server.lastError === undefined
            ? []
            : ([
                [
                  "Last error",
                  <>
                    {server.lastError} (<Time at={server.lastErrorAt} />)
                  </>,
                ],
              ] as [string, React.ReactNode][])),
          ...((server.problems ?? []).length > 0 ? ([["Left out", (server.problems ?? []).join("; ")]] as [string, string][]) : []),
        ]}
      />
      {error !== null && <ErrorNotice error={error} />}
      {changes.length > 0 && (
        <section aria-label="Definitions to approve">
          <h2>Definitions to approve</h2>
          <p className="muted small">
            A tool says to models what it does. Nothing of these is used before somebody has read it: look for instructions that a
            tool has no business to give.
          </p>
          {changes.map((change) => (
            <Change key={change.name} change={change} isOpen={changes.length <= 3} onApprove={() => void approve([change])} />
          ))}
          {changes.length > 1 && <Button onClick={() => void approve(changes)}>Approve all {changes.length} as shown</Button>}
        </section>
      )}
      <section aria-label="Last lines">
        <h2>Last lines</h2>
        {(log.data?.lines.length ?? 0) === 0 ? (
          <p className="muted small">It has written nothing.</p>
        ) : (
          <pre className="operations-log" tabIndex={0} aria-label={`Last lines of ${server.name}`}>
            {log.data?.lines.map((line) => `${new Date(line.time * 1000).toLocaleTimeString()}  ${line.message}`).join("\n")}
          </pre>
        )}
      </section>
    </div>
  );
}

function Change({ change, isOpen, onApprove }: { change: DefinitionChange; isOpen: boolean; onApprove: () => void }) {
  const [open, setOpen] = useState(isOpen);
  return (
    <div className="operations-change">
      <div className="operations-change-head">
        <button type="button" className="btn btn-quiet" aria-expanded={open} onClick={() => setOpen(!open)}>
          <span aria-hidden="true">{open ? "▾" : "▸"}</span> <b className="mono">{change.name}</b>
        </button>
        <Chip tone={change.kind === "new" ? "run" : "wait"}>{change.kind}</Chip>
        <Button icon="check" disabled={!open} title={open ? undefined : "Read it first"} onClick={onApprove}>
          Approve
        </Button>
      </div>
      {open && <DiffView diff={change.diff} label={`Definition of ${change.name}`} />}
    </div>
  );
}
