/** The configuration in force, also after a reload: where secrets come from, never what they are. */
import { useQuery } from "@tanstack/react-query";
import { api } from "../../api/client";
import { Empty, ErrorNotice, JsonView, Loading, SearchField, useUrlState } from "../../components";

const TITLES: Record<string, string> = {
  providers: "Providers",
  model: "Default model",
  defaultProvider: "Default provider",
  aliases: "Aliases",
  balance: "Balanced aliases",
  fallbacks: "Fallbacks",
  fallbackOn: "Falls back on",
  limits: "Limits",
  mcpServers: "MCP servers",
  agents: "Agents",
  policy: "Policy",
  reach: "Who is reached",
  version: "Version",
};

export function Configuration() {
  const [params] = useUrlState();
  const q = (params.get("q") ?? "").toLowerCase();
  const { data, error, refetch } = useQuery({
    queryKey: ["system", "config"],
    queryFn: ({ signal }) => api.get<Record<string, unknown>>("/api/config", { signal }),
  });
  if (error !== null) return <ErrorNotice error={error} onRetry={() => void refetch()} />;
  if (data === undefined) return <Loading />;
  const sections = Object.entries(data).filter(
    ([name, value]) => q === "" || name.toLowerCase().includes(q) || JSON.stringify(value).toLowerCase().includes(q),
  );
  return (
    <>
      <div className="system-search">
        <SearchField placeholder="Setting or value" />
        <p className="muted small">
          What dragoman.yaml and the environment mean now. Secrets are named by where they come from. SIGHUP reads the file again.
        </p>
      </div>
      {sections.length === 0 && (
        <Empty icon="search" title="No settings match">
          <p>Search for a section such as “policy”, or for a value.</p>
        </Empty>
      )}
      <div className="system-sections">
        {sections.map(([name, value]) => (
          <Section key={name} title={TITLES[name] ?? name} value={value} isOpen={q !== "" || isShort(value)} />
        ))}
      </div>
    </>
  );
}

function Section({ title, value, isOpen }: { title: string; value: unknown; isOpen: boolean }) {
  if (isEmpty(value))
    return (
      <section className="card system-section">
        <h2>
          {title} <span className="muted small">none</span>
        </h2>
      </section>
    );
  return (
    <details className="card system-section" open={isOpen}>
      <summary>
        {title} <span className="muted small">{Array.isArray(value) && value.length}</span>
      </summary>
      {isPlain(value) ? <p className="mono">{String(value)}</p> : <JsonView value={value} label={title} />}
    </details>
  );
}

function isEmpty(value: unknown): boolean {
  return value === null || (typeof value === "object" && Object.keys(value).length === 0);
}

function isPlain(value: unknown): boolean {
  return value === null || typeof value !== "object";
}

function isShort(value: unknown): boolean {
  return isPlain(value) || JSON.stringify(value).length < 400;
}
