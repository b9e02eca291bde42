/** Operations: what can be called, found as a model finds it; and the MCP servers and spokes that bring more. */
import { keepPreviousData, useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { useMemo, useRef, useState } from "react";
import { useLocation, useParams } from "wouter";
import { api } from "../../api/client";
import { reread, useEvents, useStaleAfter } from "../../api/events";
import { useSession } from "../../api/session";
import {
  Button,
  Empty,
  ErrorNotice,
  Filter,
  Kind,
  Loading,
  ScreenHeader,
  SearchField,
  Table,
  Tabs,
  count,
  useKeys,
  useNarrow,
  useUrlState,
  type Column,
} from "../../components";
import { Detail } from "./detail";
import { Servers, useServers } from "./servers";
import { Spokes } from "./spokes";
import type { OperationPage, SearchAnswer, SearchScore } from "./types";
import "./operations.css";

const PAGE = 200;
const LIVE_PAGES = 2; // of a list that is read further, each change would cost that many requests
const REREAD_DELAY = 300; // ms

interface Row {
  id: string;
  summary: string;
  effect: string;
  source: string;
  score: SearchScore | null;
}

export default function OperationsScreen() {
  const session = useSession();
  const [params, setParams] = useUrlState();
  const isAdmin = session.can("admin");
  const tab = isAdmin ? (params.get("tab") ?? "operations") : "operations";
  const servers = useServers(isAdmin);
  const waiting = (servers.data?.servers ?? []).reduce((sum, server) => sum + server.waiting, 0);
  const tabs = [
    { id: "operations", label: "Operations" },
    { id: "servers", label: waiting > 0 ? `MCP servers (${waiting} to approve)` : "MCP servers" },
    { id: "spokes", label: "Spokes" },
  ];
  const [, go] = useLocation();
  const show = (id: string) => go(id === "operations" ? "/operations" : `/operations?tab=${id}`, { replace: true });
  const step = (by: number) => {
    const at = tabs.findIndex(({ id }) => id === tab) + by;
    show(tabs[(at + tabs.length) % tabs.length]?.id ?? "operations");
  };
  useKeys("Operations", isAdmin ? { "[": ["previous tab", () => step(-1)], "]": ["next tab", () => step(1)] } : null);
  return (
    <>
      <ScreenHeader title="Operations" />
      {isAdmin && <Tabs label="What brings operations" items={tabs} active={tab} onChange={show} />}
      {tab === "operations" && <List namespace={params.get("namespace")} q={params.get("q") ?? ""} onClear={() => setParams({ q: null, namespace: null })} />}
      {tab === "servers" && (
        <div className="pad" tabIndex={0}>
          <Servers />
        </div>
      )}
      {tab === "spokes" && (
        <div className="pad" tabIndex={0}>
          <Spokes />
        </div>
      )}
    </>
  );
}

function List({ namespace, q, onClear }: { namespace: string | null; q: string; onClear: () => void }) {
  const { id } = useParams<{ id?: string }>();
  const [, go] = useLocation();
  const narrow = useNarrow();
  const all = useInfiniteQuery({
    queryKey: ["operations", "list", namespace],
    queryFn: ({ pageParam, signal }) =>
      api.get<OperationPage>("/api/operations", { query: { namespace, limit: PAGE, after: pageParam }, signal }),
    initialPageParam: null as string | null,
    getNextPageParam: (page) => page.next,
  });
  const search = useQuery({
    queryKey: ["operations", "search", namespace, q],
    queryFn: ({ signal }) => api.get<SearchAnswer>("/api/operations", { query: { q, namespace, scores: 1, record: 0 }, signal }),
    enabled: q !== "",
    placeholderData: keepPreviousData,
  });
  const [isOld, setOld] = useState(false);
  const client = useQueryClient();
  const readAgain = () => {
    setOld(false);
    void reread(client, ["operations"]);
  };
  useStaleAfter(["operations", "list"]);
  const timer = useRef<ReturnType<typeof setTimeout> | null>(null);
  useEvents("operations.changed", () => {
    if ((all.data?.pages.length ?? 0) > LIVE_PAGES && q === "") setOld(true);
    else timer.current ??= setTimeout(() => ((timer.current = null), readAgain()), REREAD_DELAY);
  });
  const rows = useMemo(() => toRows(q, search.data, all.data?.pages), [q, search.data, all.data]);
  const error = q === "" ? all.error : search.error;
  const open = (operation: string) => go(`/operations/${encodeURIComponent(operation)}${window.location.search}`, { replace: true });
  useKeys("Operations", { Escape: ["close the details", () => go(`/operations${window.location.search}`, { replace: true })] });
  const loadMore = () => q === "" && all.hasNextPage && !all.isFetching && void all.fetchNextPage();
  const spaces = Object.entries(all.data?.pages[0]?.namespaces ?? {});
  const total = spaces.reduce((sum, [name, size]) => (namespace === null || name === namespace ? sum + size : sum), 0);
  const columns = q === "" ? COLUMNS : [...COLUMNS, SCORE];
  const hideList = narrow && id !== undefined;
  return (
    <>
      {!hideList && (
        <div className="toolbar">
          <SearchField placeholder="Search as models do: verb + object" />
          <Filter
            name="namespace"
            label="Namespace"
            choices={[["", "all namespaces"], ...spaces.map(([name, size]) => [name, `${name} (${size})`] as [string, string])]}
          />
          {q === "" && total > 0 && <span className="muted small">{count(total)} operations</span>}
          {isOld && (
            <Button icon="again" onClick={readAgain}>
              The list may have changed: read it anew
            </Button>
          )}
          {q !== "" && search.data !== undefined && (
            <span className="muted small">
              {search.data.tools.length} shown to a model{search.data.more > 0 && `, ${count(search.data.more)} more match`}
              {search.data.hint !== undefined && ` · ${search.data.hint}`}
            </span>
          )}
        </div>
      )}
      {error !== null && (
        <div className="pad">
          <ErrorNotice error={error} onRetry={() => void (q === "" ? all : search).refetch()} />
        </div>
      )}
      {rows === null && error === null && <Loading />}
      {rows !== null && (
        <div className={`operations-split ${id === undefined ? "operations-alone" : ""}`}>
          {!hideList && (
            <Table
              label="Operations"
              columns={id === undefined ? columns : columns.filter((column) => column.id === "name" || column.id === "score")}
              rows={rows}
              rowId={(row) => row.id}
              rowHeight={46}
              selected={id}
              onOpen={(row) => open(row.id)}
              onEnd={loadMore}
              empty={<NoOperations q={q} onClear={onClear} />}
            />
          )}
          {id !== undefined && (
            <div className="operations-detail" role="region" aria-label="Operation" tabIndex={0}>
              <div className="operations-back">
                <Button look="quiet" icon="left" onClick={() => go(`/operations${window.location.search}`, { replace: true })}>
                  All operations
                </Button>
              </div>
              <Detail key={id} id={id} />
            </div>
          )}
        </div>
      )}
    </>
  );
}

function toRows(q: string, found: SearchAnswer | undefined, pages: OperationPage[] | undefined): Row[] | null {
  if (q === "") return pages?.flatMap((page) => page.operations.map((each) => ({ ...each, score: null }))) ?? null;
  return found?.tools.map((hit) => ({ ...hit, id: hit.tool })) ?? null;
}

const COLUMNS: Column<Row>[] = [
  {
    id: "name",
    title: "Operation",
    width: "minmax(0, 760px)",
    cell: (row) => (
      <span className="operations-name">
        <b className="mono">{row.id}</b>
        <span className="muted small">{row.summary}</span>
      </span>
    ),
  },
  {
    id: "effect",
    title: "Effect",
    width: "90px",
    cell: (row) => <Kind kind={row.effect === "read" ? "tool" : "op"}>{row.effect}</Kind>,
  },
  { id: "source", title: "From", width: "minmax(80px, 1fr)", wide: true, cell: (row) => <span className="muted">{row.source}</span> },
];

const SCORE: Column<Row> = {
  id: "score",
  title: "Score",
  width: "104px",
  numeric: true,
  cell: (row) =>
    row.score !== null && (
      <span title={`Words: ${percent(row.score.words)} of the best one's; it has ${percent(row.score.coverage)} of the words, by their rarity`}>
        {row.score.name !== null && <Kind kind="tool">{row.score.name}</Kind>} {percent(row.score.words)}
      </span>
    ),
};

function percent(value: number): string {
  return `${Math.round(100 * value)} %`;
}

function NoOperations({ q, onClear }: { q: string; onClear: () => void }) {
  if (q !== "")
    return (
      <Empty icon="search" title="A model would find nothing here">
        <p>Try verb + object + service, such as “send message slack”. An operation is found by the words of its name, its description and its parameters: better descriptions make better tools.</p>
        <Button onClick={onClear}>Show all operations</Button>
      </Empty>
    );
  return (
    <Empty icon="operations" title="There is nothing to call yet">
      <p>
        An operation is a function that models and you can call: a Python function with <code>@operation</code>, a tool of an MCP
        server, or what another process offers. Write one into <code>operations.py</code>:
      </p>
      <pre>{EXAMPLE}</pre>
      <p>
        and name the file under <code>operations</code> in dragoman.yaml.
      </p>
    </Empty>
  );
}

const EXAMPLE = `from dragoman import operation

@operation("shop", effect="read")
async def price(item: str) -> float:
    """Look up the price of an item."""
    return 3.5`;
