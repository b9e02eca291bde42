/** Tasks of teams, newest first, page by page. */
import { useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "wouter";
import { api } from "../../api/client";
import { reread, useInvalidate } from "../../api/events";
import {
  Button,
  Details,
  Duration,
  Empty,
  ErrorNotice,
  SheetTable,
  spellTurns,
  Status,
  Time,
  toast,
  toastError,
  useUrlState,
  type Column,
} from "../../components";
import type { Task } from "./types";

interface TaskPage {
  tasks: Task[];
  next: string | null;
}

export function Tasks() {
  const [params] = useUrlState();
  const team = params.get("of");
  const state = params.get("state");
  const text = params.get("q");
  const { data, error, fetchNextPage, hasNextPage, isFetchingNextPage, refetch } = useInfiniteQuery({
    queryKey: ["tasks", team, state, text],
    queryFn: ({ pageParam, signal }) =>
      api.get<TaskPage>("/api/tasks", { query: { team, state, text, limit: 100, before: pageParam }, signal }),
    initialPageParam: null as string | null,
    getNextPageParam: (page) => page.next,
  });
  useInvalidate(["run.", "task."], ["tasks"]);
  const rows = data?.pages.flatMap((page) => page.tasks);
  // One that another screen leads to may be on a page that is not loaded, or left out by the filters.
  const wanted = params.get("task");
  const isMissing = rows !== undefined && wanted !== null && !rows.some((task) => task.id === wanted);
  const single = useQuery({
    queryKey: ["tasks", "one", wanted],
    queryFn: ({ signal }) => api.get<Task>(`/api/tasks/${encodeURIComponent(wanted ?? "")}`, { signal }),
    enabled: isMissing,
  });
  return (
    <SheetTable
      parameter="task"
      label="Tasks"
      columns={COLUMNS}
      rows={rows}
      rowId={(task) => task.id}
      find={(id) => rows?.find((task) => task.id === id) ?? single.data}
      error={error ?? (isMissing ? single.error : null)}
      onRetry={() => void refetch()}
      onEnd={() => hasNextPage && !isFetchingNextPage && void fetchNextPage()}
      title={(task) => task.id}
      empty={
        <Empty icon="team" title={team !== null || state !== null || text !== null ? "No task fits" : "No team has had a task yet"}>
          <p>A task is work for a team: from you, from another team, or from a trigger. Its result comes back once.</p>
          <pre>dragoman teams run research "What is new?"</pre>
        </Empty>
      }
    >
      {(task) => <TaskView task={task} />}
    </SheetTable>
  );
}

function TaskView({ task }: { task: Task }) {
  const client = useQueryClient();
  const cancel = async () => {
    try {
      await api.post(`/api/tasks/${encodeURIComponent(task.id)}/cancel`);
      toast("The task is cancelled.");
    } catch (failed) {
      toastError(failed);
    }
    await reread(client, ["tasks"]);
  };
  return (
    <div className="teams-sheet">
      <p className="teams-text">{spellTurns(task.task)}</p>
      <Details
        rows={[
          ["State", <Status status={task.state} />],
          ["Team", task.team],
          ["From", `${task.source}, for ${task.owner}`],
          ["Priority", task.priority],
          ["Given", <Time at={task.createdAt} />],
          ["Took", <Duration seconds={took(task)} />],
          ["Attempts", String(task.attempts)],
        ]}
      />
      {task.error !== null && <ErrorNotice error={new Error(task.error)} />}
      {task.result !== null && <p className="teams-text">{spellTurns(task.result)}</p>}
      <div className="teams-actions">
        <Link className="btn" href={`/chat/${encodeURIComponent(task.sessionId)}`}>
          Open its session
        </Link>
        {task.runId !== null && (
          <Link className="btn" href={`/runs/${encodeURIComponent(task.runId)}`}>
            Open its run
          </Link>
        )}
        {["queued", "running", "waiting"].includes(task.state) && (
          <Button look="danger" onClick={() => void cancel()}>
            Cancel
          </Button>
        )}
      </div>
    </div>
  );
}

function took(task: Task): number | null {
  return task.endedAt === null ? null : task.endedAt - (task.startedAt ?? task.createdAt);
}

const COLUMNS: Column<Task>[] = [
  { id: "state", title: "State", width: "96px", cell: (task) => <Status status={task.state} /> },
  { id: "task", title: "Task", width: "minmax(90px, 3fr)", cell: (task) => task.task },
  { id: "team", title: "Team", width: "minmax(80px, 1fr)", wide: true, cell: (task) => task.team },
  { id: "source", title: "From", width: "80px", wide: true, cell: (task) => <span className="muted">{spellTurns(task.source)}</span> },
  { id: "owner", title: "Owner", width: "100px", wide: true, cell: (task) => task.owner },
  {
    id: "took",
    title: "Took",
    width: "84px",
    numeric: true,
    wide: true,
    cell: (task) => <Duration seconds={took(task)} />,
  },
  { id: "at", title: "Given", width: "96px", cell: (task) => <Time at={task.createdAt} /> },
];
