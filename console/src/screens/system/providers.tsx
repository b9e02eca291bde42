/** Providers: whether they are up, how the last hour went, and their keys. */
import { useQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { api } from "../../api/client";
import { useInvalidate } from "../../api/events";
import { count, duration, Empty, ErrorNotice, Loading, Status } from "../../components";
import type { Provider } from "./types";

export function Providers() {
  useInvalidate("run.", ["system", "providers"]);
  const { data, error, refetch } = useQuery({
    queryKey: ["system", "providers"],
    queryFn: ({ signal }) => api.get<{ providers: Provider[] }>("/api/providers", { signal }),
  });
  if (error !== null) return <ErrorNotice error={error} onRetry={() => void refetch()} />;
  if (data === undefined) return <Loading />;
  if (data.providers.length === 0)
    return (
      <Empty icon="system" title="No provider answers for this hub">
        <p>
          A provider is who runs the models: OpenAI, Anthropic, an Ollama on this machine. <code>dragoman init</code> finds what
          there is and writes it into dragoman.yaml.
        </p>
      </Empty>
    );
  return (
    <section className="card system-card system-providers" aria-label="Providers">
      <h2>Providers</h2>
      <div className="system-scroll" tabIndex={0} role="region" aria-label="Providers, the last hour">
        <table className="system-table">
          <thead>
            <tr>
              <th scope="col">Provider</th>
              <th scope="col">State</th>
              {["Requests, last hour", "Errors", "First token p50", "p95", "Duration p50", "p95"].map((title, at) => (
                <th key={at} scope="col" className="right">
                  {title}
                </th>
              ))}
              <th scope="col">Keys</th>
            </tr>
          </thead>
          <tbody>
            {data.providers.map((provider) => (
              <Row key={provider.name} provider={provider} />
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function Row({ provider }: { provider: Provider }) {
  const { lastHour } = provider;
  const rate = lastHour.errorRate;
  return (
    <tr>
      <th scope="row">
        <Link href={`/usage?provider=${encodeURIComponent(provider.name)}`}>{provider.name}</Link>
        <div className="muted small mono">{provider.url ?? provider.family}</div>
      </th>
      <td>
        <Status status={provider.state} />
      </td>
      <td className="num right">{count(lastHour.requests)}</td>
      <td className={`num right ${rate !== null && rate > 0 ? "system-failed" : "muted"}`}>
        {rate === null || rate === 0 ? "–" : `${(100 * rate).toFixed(rate < 0.1 ? 1 : 0)} %`}
      </td>
      <td className="num right">{duration(lastHour.firstByte.p50)}</td>
      <td className="num right">{duration(lastHour.firstByte.p95)}</td>
      <td className="num right">{duration(lastHour.duration.p50)}</td>
      <td className="num right">{duration(lastHour.duration.p95)}</td>
      <td>
        {provider.keys.length === 0 && <span className="muted">needs none</span>}
        {provider.keys.map((key) => (
          <div key={key.name} className="system-key">
            <code>{key.name}</code>{" "}
            <span className={`small ${key.cooldown > 0 ? "system-cooling" : "muted"}`}>
              {key.cooldown > 0 ? `cools down for ${duration(key.cooldown)}` : key.busy > 0 ? `${key.busy} requests` : "free"}
            </span>
          </div>
        ))}
      </td>
    </tr>
  );
}
