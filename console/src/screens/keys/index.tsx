/** Keys and access: all keys, what they may and how much, what changes them; and the session tokens. */
import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { Link, useLocation, useParams } from "wouter";
import { api } from "../../api/client";
import {
  Button,
  Chip,
  count,
  Details,
  Dialog,
  Empty,
  ErrorNotice,
  Filter,
  Loading,
  ScreenHeader,
  SearchField,
  spellTurns,
  Status,
  Table,
  Tabs,
  Time,
  useKeys,
  useUrlState,
  type Column,
} from "../../components";
import { BudgetBar, useBudgets } from "../usage/budgets";
import "../usage/usage.css";
import { CreateKey, EditKey, RevokeKey, RotateKey, Secret } from "./dialogs";
import { Tokens } from "./tokens";
import { limitsInWords, stateOf, type ApiKey, type NewKey } from "./types";
import "./keys.css";

type Layer = { at: "new" } | { at: "edit" | "rotate" | "revoke"; key: ApiKey } | { at: "secret"; made: NewKey } | null;

const TABS = [
  { id: "keys", label: "Keys" },
  { id: "tokens", label: "Session tokens" },
];

function useApiKeys() {
  return useQuery({
    queryKey: ["keys"],
    queryFn: ({ signal }) => api.get<{ keys: ApiKey[] }>("/api/keys", { signal }),
  });
}

export default function KeysScreen() {
  const [params] = useUrlState();
  const [, go] = useLocation();
  const [layer, setLayer] = useState<Layer>(null);
  const { data } = useApiKeys();
  const tab = params.get("tab") === "tokens" ? "tokens" : "keys";
  const show = (id: string) => go(id === "keys" ? "/keys" : `/keys?tab=${id}`, { replace: true });
  const other = () => show(tab === "keys" ? "tokens" : "keys");
  const close = () => setLayer(null);
  useKeys("Keys", { n: ["new key", () => setLayer({ at: "new" })], "[": ["previous tab", other], "]": ["next tab", other] });
  return (
    <>
      <ScreenHeader title="Keys" sub={data && `${count(data.keys.filter((key) => matches(key, "", "")).length)} in use`}>
        <Button look="primary" icon="plus" onClick={() => setLayer({ at: "new" })}>
          New key
        </Button>
      </ScreenHeader>
      <Tabs label="Kinds of access" items={TABS} active={tab} onChange={show} />
      {tab === "keys" ? <Keys onLayer={setLayer} /> : <Tokens />}
      {layer?.at === "new" && <CreateKey onClose={close} onMade={(made) => setLayer({ at: "secret", made })} />}
      {layer?.at === "edit" && <EditKey value={layer.key} onClose={close} />}
      {layer?.at === "rotate" && (
        <RotateKey value={layer.key} onClose={close} onMade={(made) => setLayer({ at: "secret", made })} />
      )}
      {layer?.at === "revoke" && <RevokeKey value={layer.key} onClose={close} />}
      {layer?.at === "secret" && <Secret made={layer.made} onClose={close} />}
    </>
  );
}

function Keys({ onLayer }: { onLayer: (layer: Layer) => void }) {
  const { id } = useParams<{ id?: string }>();
  const [, go] = useLocation();
  const [params] = useUrlState();
  const { data, error, refetch } = useApiKeys();
  const keys = useMemo(() => [...(data?.keys ?? [])].reverse(), [data]);
  const q = (params.get("q") ?? "").toLowerCase();
  const shown = useMemo(() => keys.filter((key) => matches(key, q, params.get("state") ?? "")), [keys, q, params]);
  const opened = keys.find((key) => key.id === id);
  const leave = () => go(`/keys${window.location.search}`, { replace: true });
  useKeys("Keys", { Escape: ["close the details", leave] });
  return (
    <>
      <div className="toolbar">
        <SearchField placeholder="Owner, label or prefix" />
        <Filter
          name="state"
          label="State"
          choices={[
            ["", "in use"],
            ["expired", "expired"],
            ["revoked", "revoked"],
            ["all", "all"],
          ]}
        />
      </div>
      {error !== null && (
        <div className="pad">
          <ErrorNotice error={error} onRetry={() => void refetch()} />
        </div>
      )}
      {data === undefined && error === null && <Loading />}
      {data !== undefined && (
        <Table
          label="Keys"
          columns={COLUMNS}
          rows={shown}
          rowId={(key) => key.id}
          selected={id}
          onOpen={(key) => go(`/keys/${encodeURIComponent(key.id)}${window.location.search}`, { replace: true })}
          empty={<NoKeys some={keys.length > 0} onNew={() => onLayer({ at: "new" })} />}
        />
      )}
      {id !== undefined && data !== undefined && (
        <Dialog open look="sheet" onClose={leave} title={opened?.name ?? opened?.id ?? "Key"}>
          {opened === undefined ? (
            <Empty icon="key" title="There is no such key">
              <p>It may belong to another hub.</p>
            </Empty>
          ) : (
            <KeyDetails value={opened} onLayer={onLayer} />
          )}
        </Dialog>
      )}
    </>
  );
}

const COLUMNS: Column<ApiKey>[] = [
  { id: "name", title: "Key", width: "minmax(min(200px, 33vw), 1.5fr)", cell: (key) => <KeyName value={key} /> },
  { id: "owner", title: "Owner", width: "minmax(60px, 1fr)", cell: (key) => key.owner },
  { id: "secret", title: "Secret", width: "140px", wide: "huge", cell: (key) => <code>{key.prefix}…</code> },
  { id: "scopes", title: "Scopes", width: "minmax(120px, 1.4fr)", wide: true, cell: (key) => scopesOf(key).join(", ") },
  { id: "models", title: "Models", width: "minmax(120px, 1.2fr)", wide: "huge", cell: (key) => <ModelsOf value={key} /> },
  {
    id: "limits",
    title: "Limits",
    width: "minmax(120px, 1.4fr)",
    wide: "extra",
    cell: (key) => limitsInWords(key.limits) || <span className="muted">the hub's</span>,
  },
  { id: "created", title: "Created", width: "110px", wide: "huge", cell: (key) => <Time at={key.createdAt} /> },
  { id: "used", title: "Last used", width: "88px", cell: (key) => (key.lastUsedAt === null ? <Never /> : <Time at={key.lastUsedAt} />) },
  {
    id: "expires",
    title: "Expires",
    width: "110px",
    wide: true,
    cell: (key) => (key.expiresAt === null ? <Never /> : <Time at={key.expiresAt} />),
  },
];

function ModelsOf({ value }: { value: ApiKey }) {
  return value.models === null ? <span className="muted">all</span> : <code>{value.models.join(", ")}</code>;
}

function Never() {
  return <span className="muted">never</span>;
}

function KeyName({ value }: { value: ApiKey }) {
  return (
    <span className="keys-name">
      <span>{value.name?.trim() ? spellTurns(value.name) : <span className="mono">{value.prefix}…</span>}</span>
      <KeyStatus value={value} />
    </span>
  );
}

function KeyStatus({ value }: { value: ApiKey }) {
  const state = stateOf(value);
  if (state === "valid") return null;
  if (state === "expires soon")
    return (
      <Chip tone="wait" icon="wait">
        <span className="keys-soon">expires soon</span>
      </Chip>
    );
  return <Status status={state} />;
}

function scopesOf(key: ApiKey): string[] {
  return key.scopes.length > 0 ? key.scopes : ["gateway", "chat", "operations"];
}

function matches(key: ApiKey, q: string, state: string): boolean {
  const found = stateOf(key);
  const inState = state === "all" || (state === "" ? found === "valid" || found === "expires soon" : found === state);
  return inState && [key.name, key.owner, key.prefix, key.id].some((text) => text?.toLowerCase().includes(q) === true);
}

function NoKeys({ some, onNew }: { some: boolean; onNew: () => void }) {
  if (some)
    return (
      <Empty icon="key" title="No keys match">
        <p>Change the filter, or search for another owner, label or prefix.</p>
      </Empty>
    );
  return (
    <Empty icon="key" title="This hub has no keys yet">
      <p>
        A key lets a person or an app in: it says who is asking, what they may, and how much. Without one, this hub answers
        whoever reaches it from this machine.
      </p>
      <Button onClick={onNew}>Create the first key</Button>
    </Empty>
  );
}

function KeyDetails({ value, onLayer }: { value: ApiKey; onLayer: (layer: Layer) => void }) {
  const budgets = useBudgets();
  const own = budgets.data?.budgets.find((each) => each.kind === "key" && each.id === value.id);
  const isRevoked = value.revokedAt !== null;
  return (
    <div className="keys-details">
      <Details
        rows={[
          ["State", stateOf(value) === "valid" ? <Chip tone="ok" icon="check">valid</Chip> : <KeyStatus value={value} />],
          ["Owner", value.owner],
          ["Secret", <code>{value.prefix}…</code>],
          ["Scopes", scopesOf(value).join(", ")],
          ["Models", <ModelsOf value={value} />],
          ["Limits", limitsInWords(value.limits) || "those of the hub"],
          ["Created", <Time at={value.createdAt} />],
          ["Expires", value.expiresAt === null ? "never" : <Time at={value.expiresAt} />],
          ["Last used", value.lastUsedAt === null ? "never" : <Time at={value.lastUsedAt} />],
          ...(isRevoked ? ([["Revoked", <Time at={value.revokedAt} />]] as [string, React.ReactNode][]) : []),
          ["Id", <code>{value.id}</code>],
        ]}
      />
      {own !== undefined && own.budgets.length > 0 && (
        <div className="usage-budget">
          {own.budgets.map((budget) => (
            <BudgetBar key={budget.window} budget={budget} name="Budget" kind="" />
          ))}
        </div>
      )}
      <p>
        <Link href={`/usage?key=${encodeURIComponent(value.id)}`}>View its usage</Link>
      </p>
      {!isRevoked && (
        <div className="keys-actions">
          <Button icon="pen" onClick={() => onLayer({ at: "edit", key: value })}>
            Change
          </Button>
          <Button icon="again" onClick={() => onLayer({ at: "rotate", key: value })}>
            Rotate
          </Button>
          <Button look="danger" onClick={() => onLayer({ at: "revoke", key: value })}>
            Revoke
          </Button>
        </div>
      )}
    </div>
  );
}
