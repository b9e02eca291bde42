/** Session tokens that have not expired: for whom an app's server made them, until when, and revoking one. */
import { useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { Link } from "wouter";
import { api } from "../../api/client";
import { reread } from "../../api/events";
import { Button, Countdown, Details, Dialog, Empty, ErrorNotice, SheetTable, Time, toast, useUrlState, type Column } from "../../components";
import type { ApiKey } from "./types";

interface Token {
  id: string;
  keyId: string;
  /** The user of the app. */
  owner: string | null;
  session: string | null;
  prefix: string | null;
  role: "read" | "write";
  models: string[] | null;
  createdAt: number;
  expiresAt: number;
}

interface Page {
  tokens: Token[];
  next: string | null;
}

export function Tokens() {
  const keys = useQuery({ queryKey: ["keys"], queryFn: ({ signal }) => api.get<{ keys: ApiKey[] }>("/api/keys", { signal }) });
  const names = useMemo(() => new Map((keys.data?.keys ?? []).map((key) => [key.id, `${key.owner}${key.name === null ? "" : ` · ${key.name}`}`])), [keys.data]);
  const { data, error, refetch, fetchNextPage, hasNextPage, isFetching } = useInfiniteQuery({
    queryKey: ["tokens"],
    queryFn: ({ pageParam, signal }) => api.get<Page>("/api/tokens", { query: { limit: 200, before: pageParam }, signal }),
    initialPageParam: null as string | null,
    getNextPageParam: (page) => page.next,
  });
  const rows = useMemo(() => data?.pages.flatMap((page) => page.tokens), [data]);
  const columns = useMemo(() => columnsOf(names), [names]);
  return (
    <SheetTable
      parameter="token"
      label="Tokens"
      columns={columns}
      rows={rows}
      rowId={(token) => token.id}
      find={(id) => rows?.find((token) => token.id === id)}
      error={error}
      onRetry={() => void refetch()}
      onEnd={() => hasNextPage && !isFetching && void fetchNextPage()}
      title={sessionsOf}
      empty={
        <Empty icon="key" title="No session token is valid now">
          <p>
            A token lets the browser of an app's user into that user's sessions for some minutes, without a key. The app's server
            makes it with its own key: <code>POST /api/tokens</code>, or <code>dragoman tokens create --owner USER</code> to try it.
          </p>
        </Empty>
      }
    >
      {(token) => <TokenView key={token.id} token={token} name={names.get(token.keyId) ?? token.keyId} />}
    </SheetTable>
  );
}

function columnsOf(names: Map<string, string>): Column<Token>[] {
  return [
    { id: "for", title: "For", width: "minmax(120px, 1.5fr)", cell: sessionsOf },
    { id: "key", title: "Made by", width: "minmax(100px, 1fr)", wide: true, cell: (token) => names.get(token.keyId) ?? token.keyId },
    { id: "role", title: "May", width: "70px", cell: (token) => token.role },
    { id: "made", title: "Made", width: "96px", wide: true, cell: (token) => <Time at={token.createdAt} /> },
    { id: "ends", title: "Ends in", width: "84px", cell: (token) => <Countdown until={token.expiresAt} /> },
  ];
}

function sessionsOf(token: Token): string {
  if (token.owner !== null) return `user ${token.owner}`;
  return token.session === null ? `sessions ${token.prefix}…` : `session ${token.session}`;
}

function TokenView({ token, name }: { token: Token; name: string }) {
  const [, setParams] = useUrlState();
  const client = useQueryClient();
  const [asks, setAsks] = useState(false);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const revoke = async () => {
    setBusy(true);
    setError(null);
    try {
      await api.delete(`/api/tokens/${encodeURIComponent(token.id)}`);
      toast("The token is revoked.");
      setParams({ token: null });
      await reread(client, ["tokens"]);
    } catch (failed) {
      setError(failed);
      setBusy(false);
    }
  };
  return (
    <div className="keys-details">
      <Details
        rows={[
          ["For", sessionsOf(token)],
          ["Made by", <Link href={`/keys/${encodeURIComponent(token.keyId)}`}>{name}</Link>],
          ["May", token.role === "read" ? "read" : "read and write"],
          ["Models", token.models === null ? "those of its key" : <code>{token.models.join(", ")}</code>],
          ["Made", <Time at={token.createdAt} />],
          ["Ends in", <Countdown until={token.expiresAt} />],
          ["Id", <code>{token.id}</code>],
        ]}
      />
      <div className="keys-actions">
        <Button look="danger" onClick={() => setAsks(true)}>
          Revoke
        </Button>
      </div>
      <Dialog
        open={asks}
        onClose={() => setAsks(false)}
        title="Revoke this token?"
        actions={
          <>
            <Button onClick={() => setAsks(false)}>Keep it</Button>
            <Button look="danger" busy={busy} onClick={() => void revoke()}>
              Revoke
            </Button>
          </>
        }
      >
        {error !== null && <ErrorNotice error={error} />}
        <p>The browser that has it is refused from now on, and its streams end within seconds. The app's server can make another one.</p>
      </Dialog>
    </div>
  );
}
