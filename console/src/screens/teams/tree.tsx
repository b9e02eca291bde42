/** The tree of teams, and what one of them is. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useRef, useState, type KeyboardEvent } from "react";
import { api } from "../../api/client";
import { reread } from "../../api/events";
import { useSession } from "../../api/session";
import { Button, Chip, Details, Empty, ErrorNotice, Loading, money, toast, toastError, useUrlState } from "../../components";
import type { Team, TeamDetail } from "./types";

interface Node {
  team: Team;
  level: number;
  hasChildren: boolean;
}

/** The teams as a flat list of visible rows, children below their parents. */
function flatten(teams: Team[], closed: Set<string>): Node[] {
  const children = new Map<string | null, Team[]>();
  const names = new Set(teams.map((team) => team.name));
  for (const team of teams) {
    const parent = team.parent !== null && names.has(team.parent) ? team.parent : null;
    children.set(parent, [...(children.get(parent) ?? []), team]);
  }
  const rows: Node[] = [];
  const visit = (parent: string | null, level: number) => {
    for (const team of children.get(parent) ?? []) {
      const hasChildren = children.has(team.name);
      rows.push({ team, level, hasChildren });
      if (hasChildren && !closed.has(team.name)) visit(team.name, level + 1);
    }
  };
  visit(null, 1);
  return rows;
}

export function TeamTree({ teams, problems }: { teams: Team[]; problems: string[] }) {
  const [params, setParams] = useUrlState();
  const [closed, setClosed] = useState<Set<string>>(new Set());
  const list = useRef<HTMLUListElement>(null);
  const rows = flatten(teams, closed);
  const picked = params.get("team") ?? rows[0]?.team.name ?? null;
  if (teams.length === 0)
    return (
      <Empty icon="team" title="This hub has no teams yet">
        <p>
          A team is a folder: an agent with rules, tools that it may call, tasks and memory. Make one below <code>teams/</code>; it
          is read without a restart.
        </p>
        <pre>dragoman teams init research</pre>
      </Empty>
    );
  const toggle = (name: string) =>
    setClosed((now) => {
      const next = new Set(now);
      if (!next.delete(name)) next.add(name);
      return next;
    });
  const onKeyDown = (event: KeyboardEvent) => {
    const at = rows.findIndex((row) => row.team.name === picked);
    const row = rows[at];
    if (row === undefined) return;
    const moves: Record<string, number> = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 };
    const to = moves[event.key];
    if (to !== undefined) {
      const next = rows[Math.max(0, Math.min(rows.length - 1, to))];
      if (next !== undefined) setParams({ team: next.team.name });
      list.current?.querySelector<HTMLElement>(`[data-team="${next?.team.name ?? ""}"]`)?.focus();
    } else if ((event.key === "ArrowRight" && closed.has(row.team.name)) || (event.key === "ArrowLeft" && row.hasChildren && !closed.has(row.team.name))) {
      toggle(row.team.name);
    } else return;
    event.preventDefault();
  };
  return (
    <div className="teams-split">
      <ul role="tree" aria-label="Teams" className="teams-tree" ref={list} onKeyDown={onKeyDown}>
        {rows.map((row) => (
          <li
            key={row.team.name}
            role="treeitem"
            aria-level={row.level}
            aria-expanded={row.hasChildren ? !closed.has(row.team.name) : undefined}
            aria-selected={row.team.name === picked}
            tabIndex={row.team.name === picked ? 0 : -1}
            data-team={row.team.name}
            style={{ paddingLeft: 8 + 18 * (row.level - 1) }}
            onClick={() => setParams({ team: row.team.name })}
          >
            <span
              className="teams-fold"
              aria-hidden="true"
              onClick={(event) => {
                if (!row.hasChildren) return;
                event.stopPropagation();
                toggle(row.team.name);
              }}
            >
              {row.hasChildren ? (closed.has(row.team.name) ? "▸" : "▾") : ""}
            </span>
            <b>{row.team.name}</b>
            {row.team.paused && <Chip tone="wait">paused</Chip>}
            {row.team.generated && <Chip tone="muted">made by an agent</Chip>}
          </li>
        ))}
      </ul>
      <div className="teams-detail">
        {problems.map((problem) => (
          <ErrorNotice key={problem} error={new Error(problem)} />
        ))}
        {picked !== null && <TeamView key={picked} name={picked} />}
      </div>
    </div>
  );
}

function TeamView({ name }: { name: string }) {
  const session = useSession();
  const client = useQueryClient();
  const { data, error } = useQuery({
    queryKey: ["teams", name],
    queryFn: ({ signal }) => api.get<TeamDetail>(`/api/teams/${encodeURIComponent(name)}`, { signal }),
  });
  const act = async (what: "pause" | "resume", text: string) => {
    try {
      await api.post(`/api/teams/${encodeURIComponent(name)}/${what}`);
      toast(text);
    } catch (failed) {
      toastError(failed);
    }
    await reread(client, ["teams"]);
  };
  if (error !== null) return <ErrorNotice error={error} />;
  if (data === undefined) return <Loading />;
  const budget = [
    data.budget.usd !== null ? money(data.budget.usd) : null,
    data.budget.calls !== null ? `${data.budget.calls} calls` : null,
    data.budget.seconds !== null ? `${data.budget.seconds} s` : null,
  ].filter((each) => each !== null);
  return (
    <>
      <h2>
        {data.name} {data.paused && <Chip tone="wait">paused</Chip>}
      </h2>
      <p>{data.description}</p>
      <Details
        rows={[
          ["Model", data.model ?? "the hub's"],
          ["May call", data.allowedTools.length === 0 ? "nothing" : <code>{data.allowedTools.join(", ")}</code>],
          ["May ask", data.members.join(", ") || "no other team"],
          ["Sub-agents", data.subagents.join(", ") || "none"],
          ["At once", `${data.concurrency} tasks of ${data.maxSteps} steps`],
          ["Budget", budget.join(" · ") || "that of its caller"],
          ["Takes on", data.accepts.join(", ") || "anything"],
        ]}
      />
      {session.can("admin") && (
        <div className="teams-actions">
          {data.paused ? (
            <Button icon="play" onClick={() => void act("resume", "It begins tasks again.")}>
              Resume
            </Button>
          ) : (
            <Button icon="stop" onClick={() => void act("pause", "It begins no more tasks.")}>
              Pause
            </Button>
          )}
        </div>
      )}
      <h3>Instructions</h3>
      <ul className="teams-sections">
        {data.sections.map((section) => (
          <li key={`${section.kind}${section.source}`}>
            <span className="mono">{section.source}</span>
            <span className="muted small">{section.kind}</span>
            <span className="muted small num">{section.tokens} tokens</span>
          </li>
        ))}
      </ul>
      {data.conflicts.length > 0 && (
        <p className="muted small">
          {data.conflicts.length} rules stand at two levels under one name; the nearer one holds.
        </p>
      )}
    </>
  );
}
