/** Triggers of teams: when they fire, and what a person decides about them. */
import { useState } from "react";
import { useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { api } from "../../api/client";
import { reread, useInvalidate } from "../../api/events";
import {
  Button,
  Chip,
  Details,
  Empty,
  JsonView,
  money,
  SheetTable,
  spell,
  Status,
  Time,
  toast,
  toastError,
  useUrlState,
  type Column,
  type Tone,
  spellTurns,
} from "../../components";
import { seconds, type Occurrence, type Trigger } from "./types";

const STATES: Record<Trigger["state"], [tone: Tone, word: string]> = {
  pending: ["wait", "to activate"],
  active: ["ok", "active"],
  disabled: ["muted", "paused"],
};

interface TriggerPage {
  triggers: Trigger[];
  next: string | null;
}

export function Triggers() {
  const [params] = useUrlState();
  const team = params.get("of");
  const text = params.get("q");
  const { data, error, fetchNextPage, hasNextPage, isFetchingNextPage, refetch } = useInfiniteQuery({
    queryKey: ["triggers", team, text],
    queryFn: ({ pageParam, signal }) => api.get<TriggerPage>("/api/triggers", { query: { team, text, limit: 100, after: pageParam }, signal }),
    initialPageParam: null as string | null,
    getNextPageParam: (page) => page.next,
  });
  useInvalidate(["run.", "trigger."], ["triggers"]);
  const rows = data?.pages.flatMap((page) => page.triggers);
  // One that an address leads to may be on a page that is not loaded, or left out by the filters.
  const wanted = params.get("trigger");
  const isMissing = rows !== undefined && wanted !== null && !rows.some((each) => each.id === wanted);
  const single = useQuery({
    queryKey: ["triggers", "one", wanted],
    queryFn: ({ signal }) => api.get<Trigger>(`/api/triggers/${encodeURIComponent(wanted ?? "")}`, { signal }),
    enabled: isMissing,
  });
  return (
    <SheetTable
      parameter="trigger"
      label="Triggers"
      columns={COLUMNS}
      rows={rows}
      rowId={(each) => each.id}
      find={(id) => rows?.find((each) => each.id === id) ?? single.data}
      error={error ?? (isMissing ? single.error : null)}
      onRetry={() => void refetch()}
      onEnd={() => hasNextPage && !isFetchingNextPage && void fetchNextPage()}
      title={(each) => each.name}
      empty={
        <Empty icon="wait" title={text === null ? "No trigger gives tasks yet" : "No trigger fits"}>
          <p>
            A trigger gives its team a task by the clock, a message, a webhook or a changed file. Write one into the team's folder
            as <code>triggers/nightly.yaml</code>, or ask an agent for it; it fires nothing until you activate it here.
          </p>
        </Empty>
      }
    >
      {(each) => <TriggerView key={each.id} trigger={each} />}
    </SheetTable>
  );
}

function TriggerState({ state }: { state: Trigger["state"] }) {
  const [tone, word] = STATES[state];
  return <Chip tone={tone}>{word}</Chip>;
}

function TriggerView({ trigger }: { trigger: Trigger }) {
  const client = useQueryClient();
  const [isRead, setRead] = useState(false);
  const path = `/api/triggers/${encodeURIComponent(trigger.id)}`;
  const history = useQuery({
    queryKey: ["triggers", trigger.id, "history"],
    queryFn: ({ signal }) => api.get<{ occurrences: Occurrence[] }>(`${path}/history`, { signal }),
  });
  const act = async (what: "enable" | "disable" | "run", text: string) => {
    try {
      await api.post(`${path}/${what}`);
      toast(text);
    } catch (failed) {
      toastError(failed);
    }
    await reread(client, ["triggers"]);
  };
  return (
    <div className="teams-sheet">
      <p className="teams-text">{spell(trigger.task)}</p>
      <Details
        rows={[
          ["State", <TriggerState state={trigger.state} />],
          ...(trigger.reason === undefined ? [] : ([["Why", trigger.reason]] as [string, string][])),
          ["Team", trigger.team],
          ["Type", trigger.type],
          ["Rights of", trigger.owner || "nobody yet: of whoever activates it"],
          ["Next", <Time at={seconds(trigger.nextAt)} />],
          ["Last fired", <Time at={seconds(trigger.lastFiredAt)} />],
          ["Failures", String(trigger.failures)],
          ["Defined in", trigger.source === "file" ? "a file of the team" : "the API"],
        ]}
      />
      <JsonView value={trigger.config} label="Configuration of the trigger" isSpelt isWhole onShownWhole={() => setRead(true)} />
      <div className="teams-actions">
        {trigger.state !== "active" && (
          <Button icon="check" disabled={!isRead} title={isRead ? undefined : "Open all of its configuration first"} onClick={() => void act("enable", "It is active now.")}>
            Activate as shown
          </Button>
        )}
        {trigger.state === "active" && (
          <Button icon="stop" onClick={() => void act("disable", "It fires nothing until it is activated.")}>
            Pause
          </Button>
        )}
        <Button icon="play" onClick={() => void act("run", "It has fired once.")}>
          Run now
        </Button>
      </div>
      <h3>What it fired</h3>
      {(history.data?.occurrences ?? []).length === 0 && <p className="muted small">Nothing yet.</p>}
      <ul className="teams-sections">
        {(history.data?.occurrences ?? []).map((each) => (
          <li key={each.occurrence}>
            <Status status={each.state} />
            <span className="teams-result" title={each.error ?? each.result}>
              {each.error ?? each.result ?? each.occurrence}
            </span>
            <span className="muted small">
              {each.cost !== undefined && `${money(each.cost)} · `}
              <Time at={seconds(each.firedAt)} />
            </span>
          </li>
        ))}
      </ul>
    </div>
  );
}

const COLUMNS: Column<Trigger>[] = [
  { id: "state", title: "State", width: "100px", cell: (each) => <TriggerState state={each.state} /> },
  { id: "name", title: "Trigger", width: "minmax(100px, 1fr)", cell: (each) => <b className="teams-name">{spellTurns(each.name)}</b> },
  { id: "team", title: "Team", width: "minmax(80px, 1fr)", wide: true, cell: (each) => each.team },
  { id: "type", title: "Type", width: "84px", wide: true, cell: (each) => <span className="muted">{each.type}</span> },
  { id: "task", title: "Task", width: "minmax(100px, 2fr)", wide: true, cell: (each) => each.task },
  { id: "next", title: "Next", width: "100px", cell: (each) => <Time at={seconds(each.nextAt)} /> },
];
