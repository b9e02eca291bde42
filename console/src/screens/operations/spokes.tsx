/** Spokes: processes that offer operations, what of them is open to all owners, and their lines in the log. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { api } from "../../api/client";
import { reread, useInvalidate } from "../../api/events";
import { Button, Chip, Empty, ErrorNotice, Loading, spellTurns, Status, toast, toastError, useUrlState, type Tone } from "../../components";
import { DiffView } from "./diff_view";
import type { Spoke, SpokeOperation } from "./types";

const SHARING: Record<SpokeOperation["sharing"], [tone: Tone, word: string]> = {
  granted: ["ok", "for all, by the configuration"],
  approved: ["ok", "for all, approved"],
  changed: ["wait", "changed since it was approved"],
  private: ["muted", "for its owner"],
};

export function Spokes() {
  useInvalidate("operations.changed", ["spokes"]);
  const spokes = useQuery({
    queryKey: ["spokes", "list"],
    queryFn: ({ signal }) => api.get<{ spokes: Spoke[]; namespaces: { name: string; owner: string }[] }>("/api/spokes", { signal }),
  });
  const operations = useQuery({
    queryKey: ["spokes", "operations"],
    queryFn: ({ signal }) => api.get<{ operations: SpokeOperation[] }>("/api/spokes/operations", { signal }),
  });
  const error = spokes.error ?? operations.error;
  if (error !== null) return <ErrorNotice error={error} />;
  if (spokes.data === undefined || operations.data === undefined) return <Loading />;
  if (spokes.data.spokes.length === 0 && operations.data.operations.length === 0)
    return (
      <Empty icon="operations" title="No spoke is connected">
        <p>
          A spoke is a process of yours that connects to this hub and offers operations: from another machine, another network or
          another language. It needs a key with the scope <code>spoke</code>.
        </p>
        <pre>dragoman spoke stock.py:registry --hub {window.location.origin}</pre>
      </Empty>
    );
  return (
    <>
      <ul className="operations-servers">
        {spokes.data.spokes.map((spoke) => (
          <SpokeItem key={spoke.id} spoke={spoke} />
        ))}
      </ul>
      <h2>Operations of spokes</h2>
      <ul className="operations-servers">
        {operations.data.operations.map((each) => (
          <Sharing key={`${each.owner}/${each.id}`} operation={each} />
        ))}
      </ul>
    </>
  );
}

function SpokeItem({ spoke }: { spoke: Spoke }) {
  const [params, setParams] = useUrlState();
  const isOpen = params.get("spoke") === spoke.id;
  const log = useQuery({
    queryKey: ["spokes", "log", spoke.id],
    queryFn: ({ signal }) =>
      api.get<{ lines: { number: number; time: number; message: string }[] }>("/api/logs", {
        query: { text: `spoke ${spoke.id} `, limit: 50 },
        signal,
      }),
    enabled: isOpen,
  });
  return (
    <li className="card">
      <button
        type="button"
        className="operations-server"
        aria-expanded={isOpen}
        onClick={() => setParams({ spoke: isOpen ? null : spoke.id })}
      >
        <b className="mono">{spoke.name}</b>
        {spoke.connected ? <Status status="connected" /> : <Status status="failed" word="gone" />}
        <span className="muted small">
          of {spellTurns(spoke.owner)} · {spoke.operations.length} operations · {spoke.calls} of {spoke.window} calls
        </span>
      </button>
      {isOpen && (
        <div className="operations-server-body">
          <p className="mono small">{spoke.operations.join(", ") || "It has registered nothing yet."}</p>
          <pre className="operations-log" tabIndex={0} aria-label={`Log of ${spoke.name}`}>
            {(log.data?.lines ?? []).map((line) => `${new Date(line.time * 1000).toLocaleTimeString()}  ${line.message}`).join("\n") ||
              "The log has no line about it."}
          </pre>
        </div>
      )}
    </li>
  );
}

function Sharing({ operation }: { operation: SpokeOperation }) {
  const client = useQueryClient();
  const [params, setParams] = useUrlState();
  const isOpen = params.get("definition") === operation.id;
  const detail = useQuery({
    queryKey: ["spokes", "operations", operation.id],
    queryFn: ({ signal }) => api.get<{ diff: string; definition: unknown }>(`/api/spokes/operations/${encodeURIComponent(operation.id)}`, { signal }),
    enabled: isOpen,
  });
  const [tone, word] = SHARING[operation.sharing];
  const act = async (path: string, operations: unknown, text: string) => {
    try {
      await api.post(path, { operations });
      toast(text);
    } catch (failed) {
      toastError(failed);
    }
    await reread(client, ["spokes"]);
  };
  return (
    <li className="card">
      <button
        type="button"
        className="operations-server"
        aria-expanded={isOpen}
        onClick={() => setParams({ definition: isOpen ? null : operation.id })}
      >
        <b className="mono">{operation.id}</b>
        <Chip tone={tone}>{word}</Chip>
        <span className="muted small">
          of {spellTurns(operation.owner)}
          {operation.approvedBy !== undefined && ` · approved by ${operation.approvedBy}`}
        </span>
      </button>
      {isOpen && (
        <div className="operations-server-body">
          {detail.error !== null && <ErrorNotice error={detail.error} />}
          {detail.data !== undefined && (
            <DiffView diff={detail.data.diff || JSON.stringify(detail.data.definition, null, 2)} label={`Definition of ${operation.id}`} />
          )}
          <div className="operations-go">
            {(operation.sharing === "private" || operation.sharing === "changed") && (
              <Button
                icon="check"
                disabled={detail.data === undefined}
                onClick={() => void act("/api/spokes/approve", { [operation.id]: operation.hash }, "All owners may call it now.")}
              >
                Open it to all owners
              </Button>
            )}
            {(operation.sharing === "approved" || operation.sharing === "changed") && (
              <Button look="danger" onClick={() => void act("/api/spokes/revoke", [operation.id], "Only its owner may call it now.")}>
                Take the approval back
              </Button>
            )}
          </div>
        </div>
      )}
    </li>
  );
}
