/** Usage: cost, tokens, requests and latency over time, by what one asks for; and the budgets. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { lazy, Suspense, useMemo } from "react";
import { api, apiUrl } from "../../api/client";
import { useInvalidate } from "../../api/events";
import { useSession } from "../../api/session";
import { Button, Empty, ErrorNotice, Filter, Loading, ScreenHeader, Tabs, count, loadModule, useKeys, useUrlState } from "../../components";
import { Budgets } from "./budgets";
import { GROUPS, groupName, linesOf, MEASURES, RANGES, type Measure } from "./measures";
import { Totals, UsageTable } from "./tables";
import type { UsageAnswer } from "./types";
import "./usage.css";

const Chart = lazy(() => loadModule(() => import("./chart"), "default"));
const FILTERS = ["owner", "model", "key", "session", "provider"] as const;

export default function UsageScreen() {
  const session = useSession();
  const [params, setParams] = useUrlState();
  const by = params.get("by") ?? "model";
  const range = RANGES.find(([id]) => id === params.get("range")) ?? RANGES[0]!;
  const measure = MEASURES.find(({ id }) => id === params.get("show")) ?? MEASURES[0]!;
  const filters = Object.fromEntries(FILTERS.map((name) => [name, params.get(name)]));
  const query = { bucket: range[2], since: range[0], group_by: by, ...filters };
  const { data, error, refetch, isFetching } = useQuery({
    queryKey: ["usage", query],
    queryFn: ({ signal }) => api.get<UsageAnswer>("/api/usage", { query, signal }),
    placeholderData: keepPreviousData,
  });
  useInvalidate("run.", ["usage"]);
  const step = (by: number) => {
    const at = MEASURES.indexOf(measure) + by;
    setParams({ show: MEASURES[(at + MEASURES.length) % MEASURES.length]?.id ?? "" });
  };
  useKeys("Usage", {
    "[": ["previous measure", () => step(-1)],
    "]": ["next measure", () => step(1)],
    R: ["refresh", () => void refetch()],
  });
  const groups = GROUPS.filter(([id]) => id !== "owner" || session.can("admin"));
  return (
    <>
      <ScreenHeader title="Usage" sub={<AsOf text={`last ${range[1]}`} at={data?.asOf} />}>
        <Button icon="again" look="quiet" aria-label="Refresh" title="Refresh (R)" busy={isFetching} onClick={() => void refetch()} />
        <a className="btn" href={apiUrl("/api/usage", { ...query, format: "csv" })} download="usage.csv">
          CSV
        </a>
      </ScreenHeader>
      <div className="toolbar">
        <Filter name="by" label="Group by" choices={groups.map(([id, word]) => [id === "model" ? "" : id, `by ${word}`])} />
        <Filter name="range" label="Time" choices={RANGES.map(([id, text], at) => [at === 0 ? "" : id, text])} />
        {FILTERS.filter((name) => params.get(name) !== null).map((name) => (
          <Button key={name} icon="x" onClick={() => setParams({ [name]: null })} title="Remove this filter">
            {name}: {params.get(name)}
          </Button>
        ))}
      </div>
      <Tabs
        label="What is shown"
        items={MEASURES.map(({ id, title }) => ({ id, label: title }))}
        active={measure.id}
        onChange={(id) => setParams({ show: id === "cost" ? null : id })}
      />
      <div className="pad" tabIndex={0}>
        {error !== null && <ErrorNotice error={error} onRetry={() => void refetch()} />}
        {data === undefined && error === null && <Loading />}
        {data !== undefined && <Report answer={data} measure={measure} by={by} />}
      </div>
    </>
  );
}

function AsOf({ text, at }: { text: string; at: number | undefined }) {
  return (
    <>
      {text}
      {at !== undefined && ` · as of ${new Date(at * 1000).toLocaleTimeString()}`}
    </>
  );
}

function Report({ answer, measure, by }: { answer: UsageAnswer; measure: Measure; by: string }) {
  const [params, setParams] = useUrlState();
  const picked = params.get("row");
  const found = answer.rows.findIndex((row) => groupName(row.group) === picked);
  const selected = found >= 0 ? found : null;
  const lines = useMemo(() => linesOf(measure, answer, selected), [measure, answer, selected]);
  const { total } = answer;
  if (total.calls === 0) {
    return (
      <div className="usage-grid">
        <Empty icon="usage" title="Nothing was used in this time">
          <p>
            Every request to a model is counted here, whether it came from a chat, an agent or a client of <code>/v1</code>. Ask
            something in the chat, or choose a longer time.
          </p>
          <Button onClick={() => setParams({ range: "365d" })}>Show the last year</Button>
        </Empty>
        <Budgets />
      </div>
    );
  }
  return (
    <>
      <div className="usage-grid">
        <section className="card" aria-label={measure.title}>
          <Totals total={total} measure={measure} />
          <Suspense fallback={<div className="usage-chart" />}>
            <Chart
              times={answer.times}
              lines={lines}
              format={measure.format}
              label={`${measure.title} per ${answer.bucket}; the numbers are in the table below`}
            />
          </Suspense>
          <details className="usage-numbers">
            <summary>Numbers of this chart</summary>
            <Numbers answer={answer} measure={measure} lines={lines} />
          </details>
        </section>
        <Budgets />
      </div>
      <UsageTable answer={answer} by={by} selected={selected} onSelect={(row) => setParams({ row })} />
      {answer.sampled && (
        <p className="muted small">Percentiles are those of the newest 200,000 of {count(total.calls)} requests.</p>
      )}
    </>
  );
}

function Numbers({ answer, measure, lines }: { answer: UsageAnswer; measure: Measure; lines: ReturnType<typeof linesOf> }) {
  const withTime: Intl.DateTimeFormatOptions =
    answer.bucket === "hour" ? { dateStyle: "short", timeStyle: "short" } : { dateStyle: "medium" };
  return (
    <div className="usage-scroll" tabIndex={0} role="region" aria-label="Numbers of this chart">
      <table className="usage-table">
        <thead>
          <tr>
            <th scope="col">{answer.bucket === "hour" ? "Hour" : "Day (UTC)"}</th>
            {lines.map((line) => (
              <th key={line.label} scope="col" className="right">
                {line.label}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {answer.times.map((time, at) => (
            <tr key={time}>
              <th scope="row">
                {new Date(time * 1000).toLocaleString(undefined, { ...withTime, timeZone: answer.bucket === "day" ? "UTC" : undefined })}
              </th>
              {lines.map((line) => (
                <td key={line.label} className="num right">
                  {measure.format(line.values[at] ?? null)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
