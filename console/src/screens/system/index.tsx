/** System: the hub itself, for administrators. */
import { Button, ScreenHeader, Tabs, useKeys, useUrlState } from "../../components";
import { useQueryClient } from "@tanstack/react-query";
import { reread } from "../../api/events";
import { Configuration } from "./configuration";
import { Log } from "./log";
import { Overview, useSystem } from "./overview";
import { Providers } from "./providers";
import { Storage } from "./storage";
import "./system.css";

const TABS = [
  { id: "overview", label: "Overview" },
  { id: "providers", label: "Providers" },
  { id: "log", label: "Log" },
  { id: "configuration", label: "Configuration" },
  { id: "storage", label: "Storage" },
];

export default function SystemScreen() {
  const [params, setParams] = useUrlState();
  const client = useQueryClient();
  const tab = TABS.find(({ id }) => id === params.get("tab"))?.id ?? "overview";
  const show = (id: string) => setParams({ tab: id === "overview" ? null : id, q: null, level: null });
  const step = (by: number) => {
    const at = TABS.findIndex(({ id }) => id === tab) + by;
    show(TABS[(at + TABS.length) % TABS.length]?.id ?? "overview");
  };
  useKeys("System", { "[": ["previous tab", () => step(-1)], "]": ["next tab", () => step(1)] });
  const { data } = useSystem();
  return (
    <>
      <ScreenHeader title="System" sub={data && `${data.host.name} · as of ${new Date(data.asOf * 1000).toLocaleTimeString()}`}>
        <Button
          look="quiet"
          icon="again"
          aria-label="Refresh"
          title="Refresh"
          onClick={() => void reread(client, ["system"])}
        />
      </ScreenHeader>
      <Tabs label="Parts of the system" items={TABS} active={tab} onChange={show} />
      {tab === "log" ? (
        <Log />
      ) : (
        <div className="pad" tabIndex={0}>
          {tab === "overview" && <Overview />}
          {tab === "providers" && <Providers />}
          {tab === "configuration" && <Configuration />}
          {tab === "storage" && <Storage />}
        </div>
      )}
    </>
  );
}
