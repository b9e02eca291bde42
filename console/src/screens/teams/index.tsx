/** Teams: who they are, their tasks and triggers, and what they know. */
import { useQuery } from "@tanstack/react-query";
import { api } from "../../api/client";
import { Empty, ErrorNotice, Filter, Loading, ScreenHeader, SearchField, Tabs, useKeys, useUrlState } from "../../components";
import { Extensions, MemoryList, Vault } from "./knowledge";
import { Tasks } from "./tasks";
import { TeamTree } from "./tree";
import { Triggers } from "./triggers";
import type { Team } from "./types";
import "./teams.css";

const TABS = [
  { id: "teams", label: "Teams" },
  { id: "tasks", label: "Tasks" },
  { id: "triggers", label: "Triggers" },
  { id: "memory", label: "Memory" },
  { id: "vault", label: "Vault" },
  { id: "skills", label: "Skills" },
  { id: "plugins", label: "Plugins" },
];
const OF_ONE = ["memory", "vault", "skills", "plugins"];
const SEARCHED = [
  ["tasks", "Words of a task"],
  ["triggers", "Name or words of a trigger"],
] as const;
const STATES = ["queued", "running", "waiting", "done", "failed", "cancelled"];

export default function TeamsScreen() {
  const [params, setParams] = useUrlState();
  const tab = TABS.find(({ id }) => id === params.get("tab"))?.id ?? "teams";
  const { data, error, refetch } = useQuery({
    queryKey: ["teams", "list"],
    queryFn: ({ signal }) => api.get<{ teams: Team[]; problems: string[] }>("/api/teams", { signal }),
  });
  const show = (id: string) => setParams({ tab: id === "teams" ? null : id, q: null, task: null, trigger: null });
  const step = (by: number) => {
    const at = TABS.findIndex(({ id }) => id === tab) + by;
    show(TABS[(at + TABS.length) % TABS.length]?.id ?? "teams");
  };
  useKeys("Teams", { "[": ["previous tab", () => step(-1)], "]": ["next tab", () => step(1)] });
  const names = (data?.teams ?? []).map((team) => team.name);
  const one = params.get("of") ?? names[0];
  const choices = (all: boolean) => [...(all ? [["", "all teams"]] : []), ...names.map((name) => [name, name])] as [string, string][];
  return (
    <>
      <ScreenHeader title="Teams" sub={data && `${names.length} ${names.length === 1 ? "team" : "teams"}`} />
      <Tabs label="Parts of teams" items={TABS} active={tab} onChange={show} />
      {error !== null && (
        <div className="pad">
          <ErrorNotice error={error} onRetry={() => void refetch()} />
        </div>
      )}
      {data === undefined && error === null && <Loading />}
      {data !== undefined && (
        <>
          {tab !== "teams" && names.length > 0 && (
            <div className="toolbar">
              {SEARCHED.map(([id, placeholder]) => tab === id && <SearchField key={id} placeholder={placeholder} />)}
              <Filter name="of" label="Team" choices={OF_ONE.includes(tab) ? ofOne(choices(false), one) : choices(true)} />
              {tab === "tasks" && (
                <Filter name="state" label="State" choices={[["", "all states"], ...STATES.map((each) => [each, each] as [string, string])]} />
              )}
            </div>
          )}
          {tab === "teams" && <TeamTree teams={data.teams} problems={data.problems} />}
          {tab === "tasks" && <Tasks />}
          {tab === "triggers" && <Triggers />}
          {OF_ONE.includes(tab) && one === undefined && (
            <Empty icon="team" title="This hub has no teams yet">
              <p>Make one first: a folder below <code>teams/</code> with a <code>team.yaml</code>.</p>
            </Empty>
          )}
          {one !== undefined && tab === "memory" && <MemoryList team={one} />}
          {one !== undefined && tab === "vault" && <Vault team={one} />}
          {one !== undefined && (tab === "skills" || tab === "plugins") && (
            <div className="pad" tabIndex={0}>
              <Extensions team={one} kind={tab} />
            </div>
          )}
        </>
      )}
    </>
  );
}

/** The first choice of a filter is "": here it stands for the first team. */
function ofOne(choices: [string, string][], one: string | undefined): [string, string][] {
  return choices.map(([value, text], at) => [at === 0 && value !== one ? value : at === 0 ? "" : value, text] as [string, string]);
}
