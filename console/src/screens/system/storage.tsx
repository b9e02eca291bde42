/** What the database holds, and what retention keeps. */
import { useQuery } from "@tanstack/react-query";
import { api } from "../../api/client";
import { bytes, count, ErrorNotice, Loading, Time } from "../../components";
import { period, type TablesAnswer } from "./types";

export function Storage() {
  const { data, error, refetch } = useQuery({
    queryKey: ["system", "tables"],
    queryFn: ({ signal }) => api.get<TablesAnswer>("/api/system/tables", { signal }),
    staleTime: 60_000,
  });
  if (error !== null) return <ErrorNotice error={error} onRetry={() => void refetch()} />;
  if (data === undefined) return <Loading label="Counting…" />;
  const tables = [...data.tables].sort((one, two) => two.rows - one.rows);
  return (
    <div className="system-storage">
      <p className="system-note">
        {data.server}
        {data.size !== null && <> · {bytes(data.size)}</>} · revision {data.revision ?? "unknown"} · as of{" "}
        {new Date(data.asOf * 1000).toLocaleTimeString()}. <code>retention</code> in dragoman.yaml says how long rows are kept;{" "}
        <code>dragoman database backup</code> makes a copy.
      </p>
      <section className="card system-card" aria-label="Tables">
        <h2>Tables</h2>
        <div className="system-scroll" tabIndex={0} role="region" aria-label="Tables of the database">
          <table className="system-table">
            <thead>
              <tr>
                <th scope="col">Table</th>
                <th scope="col" className="right">
                  Rows
                </th>
                <th scope="col">Oldest</th>
                <th scope="col">Kept</th>
                <th scope="col" className="right">
                  To be deleted
                </th>
              </tr>
            </thead>
            <tbody>
              {tables.map((table) => (
                <tr key={table.name}>
                  <th scope="row" className="mono">
                    {table.name}
                  </th>
                  <td className="num right">{table.rows === 0 ? <span className="muted">0</span> : count(table.rows)}</td>
                  <td>
                    <Time at={table.oldest} />
                  </td>
                  <td>{table.keptFor === null ? <span className="muted">for ever</span> : period(table.keptFor)}</td>
                  <td className="num right">{table.expired === 0 ? <span className="muted">–</span> : count(table.expired)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </section>
    </div>
  );
}
