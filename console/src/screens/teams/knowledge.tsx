/** What a team knows and has: memory, names of secrets, skills and plugins. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { api } from "../../api/client";
import { reread } from "../../api/events";
import { useSession } from "../../api/session";
import {
  Button,
  Chip,
  Empty,
  ErrorNotice,
  Loading,
  SearchField,
  Table,
  Time,
  count,
  spell,
  toast,
  toastError,
  useUrlState,
  type Column,
  type Tone,
} from "../../components";
import type { Memory, Plugin, Skill, VaultSecret } from "./types";

const MAX_MEMORIES = 500; // of a team for one owner

export function MemoryList({ team }: { team: string }) {
  const [params] = useUrlState();
  const q = params.get("q");
  const { data, error, refetch } = useQuery({
    queryKey: ["memory", team, q],
    queryFn: ({ signal }) => api.get<{ memories: Memory[] }>("/api/memory", { query: { team, q, limit: MAX_MEMORIES }, signal }),
  });
  return (
    <>
      <div className="toolbar">
        <SearchField placeholder="Words of a memory" />
      </div>
      {error !== null && (
        <div className="pad">
          <ErrorNotice error={error} onRetry={() => void refetch()} />
        </div>
      )}
      {data === undefined && error === null && <Loading />}
      {data !== undefined && (
        <Table
          label="Memory"
          columns={MEMORY}
          rows={data.memories}
          rowId={(each) => each.id}
          empty={
            <Empty icon="brain" title={q === null ? `${team} remembers nothing yet` : "No memories match"}>
              <p>
                A team saves what later runs should know, with <code>memory.save</code>: facts, lessons, preferences. Each run is
                told the newest ones at its beginning.
              </p>
            </Empty>
          }
        />
      )}
    </>
  );
}

const MEMORY: Column<Memory>[] = [
  { id: "key", title: "Key", width: "minmax(90px, 1fr)", cell: (each) => <span className="mono">{each.key}</span> },
  { id: "type", title: "Type", width: "90px", wide: true, cell: (each) => <span className="muted">{each.type}</span> },
  { id: "content", title: "What it knows", width: "minmax(120px, 4fr)", cell: (each) => <span title={each.content}>{each.content}</span> },
  { id: "at", title: "Since", width: "96px", cell: (each) => <Time at={each.createdAt} /> },
];

export function Vault({ team }: { team: string }) {
  const { data, error } = useQuery({
    queryKey: ["vault", team],
    queryFn: ({ signal }) => api.get<{ secrets: VaultSecret[] }>("/api/vault", { query: { team }, signal }),
  });
  if (error !== null)
    return (
      <div className="pad">
        <ErrorNotice error={error} />
      </div>
    );
  if (data === undefined) return <Loading />;
  return (
    <Table
      label="Vault"
      columns={VAULT}
      rows={data.secrets}
      rowId={(each) => each.name}
      empty={
        <Empty icon="key" title={`${team} has no secrets`}>
          <p>
            A secret of a vault reaches an operation and never a model: the model writes <code>secret:NAME</code>. Values are set
            from the command line, and are shown nowhere.
          </p>
          <pre>dragoman vault set github --team {team} --for web.fetch --to https://api.github.com</pre>
        </Empty>
      }
    />
  );
}

const VAULT: Column<VaultSecret>[] = [
  { id: "name", title: "Secret", width: "minmax(110px, 1fr)", cell: (each) => <span className="mono">{each.handle}</span> },
  {
    id: "operations",
    title: "Operations",
    width: "minmax(110px, 2fr)",
    cell: (each) => <span className="mono">{each.operations.join(", ") || "any operation of the team"}</span>,
  },
  {
    id: "origins",
    title: "May be sent to",
    width: "minmax(110px, 2fr)",
    cell: (each) =>
      each.origins.length > 0 ? (
        <span className="mono">{each.origins.join(", ")}</span>
      ) : (
        <span className="muted">no address of an input</span>
      ),
  },
  {
    id: "who",
    title: "Managed by",
    width: "120px",
    wide: true,
    cell: (each) => (each.managed ? "the operator" : <span className="muted">the team</span>),
  },
  {
    id: "plain",
    title: "Model",
    width: "110px",
    wide: true,
    cell: (each) => (each.plain ? <Chip tone="wait">may read it</Chip> : <span className="muted">never sees it</span>),
  },
  { id: "at", title: "Changed", width: "96px", cell: (each) => <Time at={each.updatedAt} /> },
];

interface Item {
  id: string;
  name: string;
  state: string;
  description: string;
  meta: string;
  texts: { title: string; text: string }[];
  approval: string | undefined;
}

/** Skills and plugins: what is used, and what waits for somebody to read it. */
export function Extensions({ team, kind }: { team: string; kind: "skills" | "plugins" }) {
  const session = useSession();
  const client = useQueryClient();
  const { data, error } = useQuery({
    queryKey: ["teams", team, kind],
    queryFn: async ({ signal }) => {
      const path = `/api/teams/${encodeURIComponent(team)}/${kind}`;
      if (kind === "skills") return (await api.get<{ skills: Skill[] }>(path, { signal })).skills.map(skillItem);
      return (await api.get<{ plugins: Plugin[] }>(path, { signal })).plugins.map(pluginItem);
    },
  });
  const answer = async (item: Item, approved: boolean) => {
    try {
      await api.post(`/api/approvals/${encodeURIComponent(item.approval ?? "")}`, { approved });
      toast(approved ? `${item.name} is approved.` : `${item.name} is refused.`);
    } catch (failed) {
      toastError(failed);
    }
    await reread(client, ["teams", team, kind], ["approvals"]);
  };
  if (error !== null) return <ErrorNotice error={error} />;
  if (data === undefined) return <Loading />;
  if (data.length === 0) return <NoExtensions team={team} kind={kind} />;
  return (
    <ul className="teams-items">
      {data.map((item) => (
        <li key={item.id} className="card">
          <div className="teams-item-head">
            <b className="mono">{item.name}</b>
            <Chip tone={TONES[item.state] ?? "muted"}>{item.state !== "proposed" ? item.state : item.approval === undefined ? "not active yet" : "to approve"}</Chip>
            <span className="muted small">{item.meta}</span>
          </div>
          {item.description !== "" && <p dir="auto">{item.description}</p>}
          {item.texts.map(({ title, text }) => (
            <details key={title} open={item.state === "proposed"}>
              <summary>{title}</summary>
              <pre tabIndex={0} aria-label={`${title} of ${item.name}`}>
                {spell(text)}
              </pre>
            </details>
          ))}
          {item.approval !== undefined && (
            <div className="teams-actions">
              {session.can("admin") || session.can("chat") ? (
                <>
                  <Button icon="check" onClick={() => void answer(item, true)}>
                    Approve as shown
                  </Button>
                  <Button look="danger" onClick={() => void answer(item, false)}>
                    Refuse
                  </Button>
                </>
              ) : null}
            </div>
          )}
        </li>
      ))}
    </ul>
  );
}

const TONES: Record<string, Tone> = { active: "ok", approved: "ok", proposed: "wait", invalid: "bad", failed: "bad" };

function skillItem(skill: Skill, at: number): Item {
  return {
    id: skill.approval ?? skill.path ?? String(at),
    name: skill.name ?? skill.path ?? "skill",
    state: skill.state,
    description: skill.problem ?? skill.description ?? "",
    meta: [skill.level, skill.source, skill.hash?.slice(0, 12)].filter((each) => each != null).join(" · "),
    texts: textsOf(skill),
    approval: skill.approval,
  };
}

/** All that an approval would write into the folder of the team, and what it would not. */
function textsOf({ text, size, operations, files, leftOut, state }: Skill): Item["texts"] {
  const texts = [];
  if (text) texts.push({ title: size === undefined ? "Text" : `Text: the first ${count(text.length)} of ${count(size)} characters`, text });
  for (const file of files ?? []) texts.push({ title: `File ${file.path}`, text: file.text });
  if (state === "proposed" && operations?.length) texts.push({ title: "Operations it requires", text: operations.join("\n") });
  if (leftOut?.length) texts.push({ title: "Files that are left out", text: leftOut.join("\n") });
  return texts;
}

function pluginItem(plugin: Plugin): Item {
  return {
    id: plugin.id,
    name: plugin.id,
    state: plugin.state,
    description: plugin.reason ?? plugin.description ?? "",
    meta: [plugin.effect, plugin.hash.slice(0, 12), plugin.approvedBy && `approved by ${plugin.approvedBy}`].filter((each) => each != null).join(" · "),
    texts: plugin.text ? [{ title: "Source", text: plugin.text }] : [],
    approval: plugin.approval,
  };
}

function NoExtensions({ team, kind }: { team: string; kind: "skills" | "plugins" }) {
  if (kind === "skills")
    return (
      <Empty icon="file" title={`${team} has no skills`}>
        <p>
          A skill is a page of advice that a run loads when it needs it: <code>skills/NAME/SKILL.md</code> in the team's folder. What
          an agent finds elsewhere waits here until somebody has read it.
        </p>
      </Empty>
    );
  return (
    <Empty icon="operations" title={`${team} has no plugins`}>
      <p>
        A plugin is an operation that the team has written for itself. It runs in a sandbox, and only after a person has approved it:
        the request to activate one waits in the inbox.
      </p>
    </Empty>
  );
}
