/** The sums above a chart, and the groups beneath it. */
import { Link } from "wouter";
import { Button, count, duration, money, shortCount, spellTurns, useUrlState } from "../../components";
import { GROUPS, groupName, type Measure } from "./measures";
import type { UsageAnswer, UsageRow } from "./types";

export function Totals({ total, measure }: { total: UsageRow; measure: Measure }) {
  const unpriced = total.unpriced > 0;
  return (
    <div className="usage-totals">
      <div>
        <h2>{measure.title}</h2>
        <div className="usage-big num">{bigNumber(total, measure.id)}</div>
        <p className="muted small">
          {count(total.calls)} requests
          {total.failed > 0 && <> · {count(total.failed)} failed</>}
          {unpriced && (
            <>
              {" · "}
              {count(total.unpriced)} ({Math.max(1, Math.round((100 * total.unpriced) / total.calls))} %) have no price
            </>
          )}
        </p>
      </div>
    </div>
  );
}

function bigNumber(total: UsageRow, measure: string): string {
  switch (measure) {
    case "tokens":
      return `${shortCount(total.inputTokens)} in · ${shortCount(total.outputTokens)} out`;
    case "requests":
      return count(total.calls);
    case "first-token":
      return `p50 ${duration(total.firstByte.p50)} · p95 ${duration(total.firstByte.p95)}`;
    case "duration":
      return `p50 ${duration(total.duration.p50)} · p95 ${duration(total.duration.p95)}`;
    default:
      return `${total.unpriced > 0 && total.cost !== null ? "≥ " : ""}${money(total.cost)}`;
  }
}

interface UsageTableProps {
  answer: UsageAnswer;
  by: string;
  selected: number | null;
  onSelect: (name: string | null) => void;
}

export function UsageTable({ answer, by, selected, onSelect }: UsageTableProps) {
  const [, setParams] = useUrlState();
  const word = GROUPS.find(([id]) => id === by)?.[1] ?? by;
  const column = GROUPS.find(([id]) => id === by)?.[2] ?? by;
  const canFilter = ["owner", "model", "key", "session", "provider"].includes(by);
  return (
    <section className="card usage-groups" aria-label={`By ${word}`}>
      <div className="usage-scroll" tabIndex={0} role="region" aria-label={`Usage by ${word}`}>
        <table className="usage-table">
          <thead>
            <tr>
              <th scope="col">{word.charAt(0).toUpperCase() + word.slice(1)}</th>
              {["Requests", "Failed", "In", "Out", "Cost", "First token p50", "p95", "Duration p50", "p95"].map((title, at) => (
                <th key={at} scope="col" className="right">
                  {title}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {answer.rows.map((row, at) => {
              const value = row.group[column] ?? null;
              return (
                <tr key={groupName(row.group)} className={at === selected ? "usage-selected" : ""}>
                  <th scope="row">
                    <GroupCell by={by} value={value} />
                    {row.points !== undefined && answer.rows.length > 1 && (
                      <Button
                        look="quiet"
                        icon="usage"
                        aria-pressed={at === selected}
                        aria-label={`Chart only ${value ?? "unknown"}`}
                        title="Chart only this"
                        onClick={() => onSelect(at === selected ? null : groupName(row.group))}
                      />
                    )}
                    {canFilter && value !== null && answer.rows.length > 1 && (
                      <Button
                        look="quiet"
                        icon="filter"
                        aria-label={`Only ${value}`}
                        title="Filter by this"
                        onClick={() => setParams({ [by]: value, by: by === "model" ? "key" : null, row: null })}
                      />
                    )}
                  </th>
                  <td className="num right">{count(row.calls)}</td>
                  <td className={`num right ${row.failed > 0 ? "usage-failed" : "muted"}`}>{row.failed > 0 ? count(row.failed) : "–"}</td>
                  <td className="num right">{shortCount(row.inputTokens)}</td>
                  <td className="num right">{shortCount(row.outputTokens)}</td>
                  <td className="num right" title={row.unpriced > 0 ? `${count(row.unpriced)} requests have no price` : undefined}>
                    {row.unpriced > 0 && row.cost !== null && "≥ "}
                    {money(row.cost)}
                  </td>
                  <td className="num right">{duration(row.firstByte.p50)}</td>
                  <td className="num right">{duration(row.firstByte.p95)}</td>
                  <td className="num right">{duration(row.duration.p50)}</td>
                  <td className="num right">{duration(row.duration.p95)}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
      {answer.more && (
        <p className="muted small usage-more">
          The {answer.rows.length} with the highest cost are shown. There are more: choose a filter or a shorter time, or take the CSV.
        </p>
      )}
    </section>
  );
}

function GroupCell({ by, value }: { by: string; value: string | null }) {
  if (value === null) return <span className="muted">{by === "operation" ? "not from an agent that works for another" : "unknown"}</span>;
  if (by === "session")
    return (
      <Link href={`/chat/${encodeURIComponent(value)}`} className="mono" title={spellTurns(value)}>
        {spellTurns(value)}
      </Link>
    );
  return (
    <span className="mono" title={spellTurns(value)}>
      {spellTurns(value)}
    </span>
  );
}
