/** Runs, calls that nothing else made, and model calls of the gateway: the newest first. */
import { useInfiniteQuery, useQueryClient, type InfiniteData } from "@tanstack/react-query";
import { useEffect, useMemo, useState } from "react";
import { Link, useLocation } from "wouter";
import { api } from "../../api/client";
import { useSession } from "../../api/session";
import {
  Button,
  Duration,
  Empty,
  ErrorNotice,
  Filter,
  Icon,
  Kind,
  Loading,
  Money,
  NewRows,
  ScreenHeader,
  SearchField,
  Status,
  Table,
  Time,
  count,
  shortCount,
  spellTurns,
  useKeys,
  useNarrow,
  useUrlState,
  waitText,
  type Column,
  type Wait,
} from "../../components";
import { PAGE, RowReads, useLiveRows, type Ending } from "./live_rows";
import { shortInput } from "./tree";
import { kindOf } from "./tree_view";
import type { Root, RootPage } from "./types";

const FILTERS = ["kind", "status", "door", "since", "error", "owner", "operation", "model", "session", "min_duration"];
const MORE: [name: string, label: string, placeholder: string][] = [
  ["operation", "Operation", "shop.refund"],
  ["model", "Model", "openai/gpt-5-mini"],
  ["owner", "Owner", "ann"],
  ["session", "Session", "an id"],
  ["min_duration", "Duration at least", "5 or 2min"],
];

export function RunsList() {
  const [params, setParams] = useUrlState();
  const [, go] = useLocation();
  const narrow = useNarrow();
  const [more, setMore] = useState(MORE.some(([name]) => params.has(name)) || (narrow && (params.has("since") || params.has("door"))));
  const session = useSession();
  const query: Record<string, string> = { roots: "1", text: params.get("q") ?? "" };
  for (const name of FILTERS) query[name] = params.get(name) ?? "";
  const filtered = Object.entries(query).some(([name, value]) => name !== "roots" && value !== "");
  const client = useQueryClient();
  const queryKey = ["roots", query];
  const [reads] = useState(() => new RowReads());
  const { data, error, isLoading, refetch, fetchNextPage, hasNextPage, isFetching } = useInfiniteQuery({
    queryKey,
    queryFn: async ({ pageParam, signal }) => {
      const request = reads.begin();
      const page = await api.get<RootPage>("/api/calls", {
        query: { ...query, limit: PAGE, before: pageParam, counts: pageParam === null ? "1" : null },
        signal,
      });
      return { ...page, calls: reads.take(request, page.calls) };
    },
    initialPageParam: null as string | null,
    getNextPageParam: (page) => page.next,
    staleTime: 0,
  });
  const rows = useMemo(() => data?.pages.flatMap((page) => page.calls) ?? [], [data]);
  const { fresh, ended, clear } = useLiveRows({ rows: data === undefined ? null : rows, query, queryKey, isFiltered: filtered, reads });
  // What is new is at the top: one request for the first page, however many are loaded.
  const show = () => {
    clear();
    client.setQueryData<InfiniteData<RootPage>>(queryKey, (now) => now && { pages: now.pages.slice(0, 1), pageParams: now.pageParams.slice(0, 1) });
    void refetch();
  };
  useKeys("Runs", {
    r: ["show new rows", show],
    e: ["only failed", () => setParams({ error: params.get("error") === "1" ? null : "1" })],
    Escape: ["clear the filters", () => setParams(Object.fromEntries(["q", ...FILTERS].map((name) => [name, null])))],
  });
  const counts = data?.pages[0]?.counts;
  const columns = useColumns(session.can("admin"), ended, narrow);
  return (
    <>
      <ScreenHeader title="Runs" sub={counts === undefined ? undefined : <Counts counts={counts} />} />
      <div className="toolbar">
        <SearchField placeholder="Search names, inputs, ids, errors" />
        <Filter
          name="kind"
          label="Kind"
          choices={[
            ["", "All kinds"],
            ["run", `Runs${number(counts?.kind["run"])}`],
            ["call", `Calls${number(counts?.kind["call"])}`],
            ["model", `Model requests${number(counts?.kind["model"])}`],
          ]}
        />
        <Filter
          name="status"
          label="Status"
          choices={[
            ["", "Any status"],
            ...(["running", "pending", "done", "failed", "aborted", "denied", "uncertain"] as const).map(
              (status): [string, string] => [status, `${status === "pending" ? "waiting" : status}${number(counts?.status[status])}`],
            ),
          ]}
        />
        {(!narrow || more) && <TimeAndApi />}
        <Button
          aria-pressed={params.get("error") === "1"}
          className={params.get("error") === "1" ? "runs-pressed" : ""}
          icon="x"
          onClick={() => setParams({ error: params.get("error") === "1" ? null : "1" })}
        >
          Has errors
        </Button>
        <Button look="quiet" icon="filter" aria-expanded={more} onClick={() => setMore(!more)}>
          More
        </Button>
        {more && (
          <div className="runs-filters">
            {MORE.filter(([name]) => name !== "owner" || session.can("admin")).map(([name, label, placeholder]) => (
              <TextFilter key={name} name={name} label={label} placeholder={placeholder} />
            ))}
          </div>
        )}
      </div>
      <NewRows count={fresh} onShow={show} />
      {error !== null && (
        <div className="pad">
          <ErrorNotice error={error} onRetry={() => void refetch()} />
        </div>
      )}
      {isLoading && <Loading />}
      {!isLoading && error === null && (
        <Table
          label="Runs"
          columns={columns}
          rows={rows}
          rowId={(row) => row.id}
          onOpen={(row) => go(`/runs/${encodeURIComponent(row.id)}`)}
          onEnd={() => hasNextPage && !isFetching && void fetchNextPage()}
          empty={<NoRows filtered={filtered} />}
        />
      )}
    </>
  );
}

function TimeAndApi() {
  return (
    <>
      <Filter
        name="since"
        label="Time"
        choices={[
          ["", "Any time"],
          ["1h", "Last hour"],
          ["24h", "Last 24 hours"],
          ["7d", "Last 7 days"],
          ["30d", "Last 30 days"],
        ]}
      />
      <Filter
        name="door"
        label="API"
        choices={[
          ["", "Any API"],
          ...["chat", "operations", "mcp", "openai", "anthropic", "responses", "spoke", "ag-ui", "a2a"].map((door): [string, string] => [door, door]),
        ]}
      />
    </>
  );
}

function number(value: number | undefined): string {
  return value === undefined || value === 0 ? "" : ` (${shortCount(value)})`;
}

function useColumns(isAdmin: boolean, ended: Map<string, Ending>, narrow: boolean): Column<Root>[] {
  return useMemo(() => {
    const columns: Column<Root>[] = [
      {
        id: "status",
        title: "Status",
        width: "96px",
        // Where there is no room for what a run waits for, its state is the kind of it.
        cell: (row) => <Status status={statusOf(row, ended)} word={narrow ? waitOf(row, ended)[0]?.kind : undefined} />,
      },
      {
        id: "name",
        title: "Name",
        width: "minmax(min(168px, 30vw), 1fr)",
        cell: (row) => (
          <span className="runs-cell">
            <Kind kind={kindOf(row)}>{row.kind === "call" ? "op" : row.kind}</Kind>
            {narrow && row.kind === "run" ? (
              <span className="runs-what">{spellTurns(subjectOf(row) || row.agent || row.name)}</span>
            ) : (
              <b className="mono" title={spellTurns(row.name)}>
                {spellTurns(row.kind === "model" ? row.name.split("/").pop() : (row.agent ?? row.name))}
              </b>
            )}
          </span>
        ),
      },
      {
        id: "what",
        title: "Summary",
        width: "minmax(0, 6fr)",
        wide: true,
        cell: (row) => (
          <span className="muted" title={whatOf(row, ended)}>
            {whatOf(row, ended)}
          </span>
        ),
      },
      { id: "door", title: "API", width: "80px", wide: "full", cell: (row) => <span className="muted">{row.door ?? "–"}</span> },
      { id: "began", title: "Started", width: "84px", numeric: true, cell: (row) => <Time at={row.startedAt} /> },
      {
        id: "took",
        title: "Duration",
        width: "72px",
        numeric: true,
        wide: true,
        cell: (row) => <Duration seconds={row.duration ?? endOf(row, ended)} />,
      },
      {
        id: "calls",
        title: "Calls",
        width: "76px",
        numeric: true,
        wide: "extra",
        cell: (row) => (
          <>
            {row.kind === "model" ? "–" : `${count(row.calls)}${row.complete ? "" : "+"}`}
            {row.failed > 0 && (
              <span className="runs-failed" title={`${row.failed} failed`}>
                {" "}
                · <Icon name="x" size={11} /> {count(row.failed)}
                <span className="visually-hidden"> failed</span>
              </span>
            )}
          </>
        ),
      },
      {
        id: "tokens",
        title: "Tokens",
        width: "92px",
        numeric: true,
        wide: "extra",
        cell: (row) => (row.inputTokens === null ? "–" : `${shortCount(row.inputTokens)} / ${shortCount(row.outputTokens)}`),
      },
      { id: "cost", title: "Cost", width: "76px", numeric: true, wide: true, cell: (row) => <Money value={row.cost} /> },
    ];
    if (isAdmin) columns.splice(3, 0, { id: "owner", title: "Owner", width: "64px", wide: "full", cell: (row) => row.owner });
    return columns;
  }, [isAdmin, ended, narrow]);
}

/** The summary of a row. */
function whatOf(row: Root, ended: Map<string, Ending>): string {
  return spellTurns(summaryOf(row, ended));
}

function summaryOf(row: Root, ended: Map<string, Ending>): string {
  if (row.error !== null && row.status === "failed") return row.error;
  if (row.kind === "model") return row.name.includes("/") ? `asked ${row.name.split("/")[0]}` : "";
  const waits = waitOf(row, ended);
  return waits.length === 0 ? subjectOf(row) : [`waits ${waitText(waits)}`, subjectOf(row)].filter(Boolean).join(" · ");
}

function subjectOf(row: Root): string {
  return row.sessionTitle ?? shortInput(row.input);
}

/** A run that had ended when its row was read is as the row says: how it ended may have been overtaken. */
function statusOf(row: Root, ended: Map<string, Ending>): string {
  const isOver = row.kind === "run" && row.status !== "running";
  return isOver ? row.status : (ended.get(row.id)?.status ?? row.status);
}

function waitOf(row: Root, ended: Map<string, Ending>): Wait[] {
  return statusOf(row, ended) === "pending" ? row.waitsFor : [];
}

function endOf(row: Root, ended: Map<string, Ending>): number | null {
  const end = ended.get(row.id);
  return end === undefined ? null : Math.max(0, end.at - row.startedAt);
}

function Counts({ counts }: { counts: NonNullable<RootPage["counts"]> }) {
  const { total, status, capped } = counts;
  const parts = [`${count(total)}${capped ? "+" : ""}`];
  if (status["running"]) parts.push(`${count(status["running"])} running`);
  if (status["failed"]) parts.push(`${count(status["failed"])} failed`);
  return <>{parts.join(" · ")}</>;
}

function TextFilter({ name, label, placeholder }: { name: string; label: string; placeholder: string }) {
  const [params, setParams] = useUrlState();
  const current = params.get(name) ?? "";
  const [text, setText] = useState(current);
  useEffect(() => setText(current), [current]); // the filters may be cleared elsewhere
  const apply = () => setParams({ [name]: text.trim() });
  return (
    <label className="runs-text-filter">
      <span>{label}</span>
      <input
        className="input"
        value={text}
        placeholder={placeholder}
        onChange={(event) => setText(event.target.value)}
        onBlur={apply}
        onKeyDown={(event) => event.key === "Enter" && apply()}
      />
    </label>
  );
}

function NoRows({ filtered }: { filtered: boolean }) {
  const [, setParams] = useUrlState();
  if (filtered) {
    return (
      <Empty icon="filter" title="No runs match these filters">
        <Button onClick={() => setParams(Object.fromEntries(["q", ...FILTERS].map((name) => [name, null])))}>Clear filters</Button>
      </Empty>
    );
  }
  return (
    <Empty icon="runs" title="No runs yet">
      <p>Every answer, operation call and model request is listed here with its call tree, whichever API it came through.</p>
      <p>
        Ask something in the <Link href="/chat">chat</Link>, or call an operation: <code>dragoman ops call time.now</code>
      </p>
    </Empty>
  );
}
