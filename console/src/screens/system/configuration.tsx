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
        <Empty icon="search" title="No setting fits">
          <p>Search for a section such as “policy”, or for a value.</p>
        </Empty>
      )}
      {sections.map(([name, value]) => (
        <details key={name} className="card system-section" open={q !== "" || isShort(value)}>
          <summary>
            {TITLES[name] ?? name} <span className="muted small">{sizeOf(value)}</span>
          </summary>
          {isPlain(value) ? <p className="mono">{String(value ?? "none")}</p> : <JsonView value={value} label={TITLES[name] ?? name} />}
        </details>
      ))}
    </>
  );
}

function isPlain(value: unknown): boolean {
  return value === null || typeof value !== "object";
}

function isShort(value: unknown): boolean {
  return isPlain(value) || JSON.stringify(value).length < 400;
}

function sizeOf(value: unknown): string {
  if (Array.isArray(value)) return value.length === 0 ? "none" : String(value.length);
  if (value !== null && typeof value === "object") {
    const names = Object.keys(value);
    return names.length === 0 ? "none" : "";
  }
  return "";
}
