/** The hub at a glance: this process, its hosts, and what waits. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "wouter";
import { api } from "../../api/client";
import { reread, useInvalidate } from "../../api/events";
import {
  Button,
  bytes,
  Chip,
  count,
  Dialog,
  ErrorNotice,
  Loading,
  Status,
  Time,
  toast,
  toastError,
  useHuge,
  useWide,
} from "../../components";
import { Providers } from "./providers";
import { Storage } from "./storage";
import type { Host, QueuedMessage, SystemState } from "./types";

export function useSystem() {
  useInvalidate("run.", ["system"]);
  return useQuery({
    queryKey: ["system", "state"],
    queryFn: ({ signal }) => api.get<SystemState>("/api/system", { signal }),
  });
}

export function Overview() {
  const { data, error, refetch } = useSystem();
  const wide = useWide();
  const huge = useHuge();
  if (error !== null) return <ErrorNotice error={error} onRetry={() => void refetch()} />;
  if (data === undefined) return <Loading />;
  const { database, queue } = data;
  return (
    <>
      <div className="system-numbers">
        <Fact name="State">{data.host.draining ? <Chip tone="wait" icon="wait">draining</Chip> : <Status status="up" />}</Fact>
        <Fact name="Runs now">{count(data.runs)}</Fact>
        <Fact name="Waiting">
          {count(queue.waiting)}
          {queue.capped && "+"}
        </Fact>
        <Fact name="Started">
          <Time at={data.startedAt} />
        </Fact>
        <Fact name="Memory">{data.memory === null ? "–" : bytes(data.memory)}</Fact>
        <Fact name="Database">
          {database.up ? (database.size === null ? "Postgres" : bytes(database.size)) : <Status status="failed" word="down" />}
        </Fact>
        <Fact name="Version">{data.version}</Fact>
      </div>
      {database.problem !== null && (
        <ErrorNotice error={new Error(`The database does not answer: ${database.problem}. Models are still relayed for keys that were seen before.`)} />
      )}
      {data.spooled > 0 && (
        <p className="system-note">{count(data.spooled)} usage records wait on disk until the database takes them.</p>
      )}
      <div className="system-cards">
        <Hosts />
        {wide && <Providers />}
        <Queue />
        {huge && <Storage />}
      </div>
    </>
  );
}

function Fact({ name, children }: { name: string; children: React.ReactNode }) {
  return (
    <div>
      <span>{name}</span>
      <b>{children}</b>
    </div>
  );
}

function Hosts() {
  const client = useQueryClient();
  const [asked, setAsked] = useState<Host | null>(null);
  const { data, error } = useQuery({
    queryKey: ["system", "hosts"],
    queryFn: ({ signal }) => api.get<{ hosts: Host[] }>("/api/hosts", { signal }),
  });
  const drain = async (host: Host) => {
    setAsked(null);
    try {
      await api.post(`/api/hosts/${encodeURIComponent(host.id)}/drain`);
      toast("The host begins no more runs.");
      await reread(client, ["system"]);
    } catch (failed) {
      toastError(failed);
    }
  };
  if (error !== null) return <ErrorNotice error={error} />;
  return (
    <section className="card system-card" aria-label="Hosts">
      <h2>Hosts</h2>
      <div className="system-scroll">
        <table className="system-table">
          <thead>
            <tr>
              <th scope="col">Host</th>
              <th scope="col">State</th>
              <th scope="col" className="right">
                Runs
              </th>
              <th scope="col" className="system-wide">
                Since
              </th>
              <th scope="col" className="system-wide">
                Version
              </th>
              <th scope="col">
                <span className="visually-hidden">Actions</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {(data?.hosts ?? []).map((host) => (
              <tr key={host.id}>
                <th scope="row">
                  {host.name} {host.self && <span className="muted small">answers you</span>}
                </th>
                <td>{host.draining ? <Chip tone="wait" icon="wait">draining</Chip> : <Status status="up" />}</td>
                <td className="num right">{host.runs}</td>
                <td className="system-wide">
                  <Time at={host.since} />
                </td>
                <td className="mono system-wide">{host.version}</td>
                <td className="right">
                  {!host.draining && (
                    <Button look="danger" onClick={() => setAsked(host)}>
                      Drain
                    </Button>
                  )}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {asked !== null && (
        <Dialog
          open
          onClose={() => setAsked(null)}
          title={`Drain ${asked.name}?`}
          actions={
            <>
              <Button onClick={() => setAsked(null)}>Keep it</Button>
              <Button look="danger" onClick={() => void drain(asked)}>
                Drain
              </Button>
            </>
          }
        >
          <p>
            It begins no more runs; the {asked.runs} that it has go on. Only a restart takes this back.
            {(data?.hosts.length ?? 0) < 2 && " It is the only host: nobody else begins runs meanwhile."}
          </p>
        </Dialog>
      )}
    </section>
  );
}

function Queue() {
  useInvalidate("run.", ["system", "queue"]);
  const { data } = useQuery({
    queryKey: ["system", "queue"],
    queryFn: ({ signal }) => api.get<{ queued: QueuedMessage[]; more: boolean }>("/api/queue", { query: { limit: 50 }, signal }),
  });
  return (
    <section className="card system-card" aria-label="Queue">
      <h2>Waiting messages</h2>
      {data?.queued.length === 0 && (
        <p className="muted small">
          Nothing waits. A message that comes while its session answers waits here, if its client asks for that (
          <code>whenBusy: queue</code>).
        </p>
      )}
      {data !== undefined && data.queued.length > 0 && (
        <div className="system-scroll">
          <table className="system-table">
            <thead>
              <tr>
                <th scope="col">Session</th>
                <th scope="col">Owner</th>
                <th scope="col">Mode</th>
                <th scope="col">Since</th>
              </tr>
            </thead>
            <tbody>
              {data.queued.map((each) => (
                <tr key={each.id}>
                  <th scope="row">
                    <Link href={`/chat/${encodeURIComponent(each.sessionId)}`} className="mono">
                      {each.sessionId}
                    </Link>
                  </th>
                  <td>{each.owner}</td>
                  <td>
                    {each.mode}
                    {each.background && ", background"}
                  </td>
                  <td>
                    <Time at={each.createdAt} />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {data?.more === true && <p className="muted small">The newest 50 are shown.</p>}
    </section>
  );
}
