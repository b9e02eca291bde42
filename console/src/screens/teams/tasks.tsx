/** Tasks of teams, newest first, page by page. */
import { useInfiniteQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "wouter";
import { api } from "../../api/client";
import { useInvalidate } from "../../api/events";
import {
  Button,
  Details,
  Dialog,
  Duration,
  Empty,
  ErrorNotice,
  Loading,
  Status,
  Table,
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
  const [params, setParams] = useUrlState();
  const client = useQueryClient();
  const team = params.get("of");
  const state = params.get("state");
  const { data, error, fetchNextPage, hasNextPage, isFetchingNextPage, refetch } = useInfiniteQuery({
    queryKey: ["tasks", team, state],
    queryFn: ({ pageParam, signal }) =>
      api.get<TaskPage>("/api/tasks", { query: { team, state, limit: 100, before: pageParam }, signal }),
    initialPageParam: null as string | null,
    getNextPageParam: (page) => page.next,
  });
  useInvalidate("run.", ["tasks"]);
  const rows = data?.pages.flatMap((page) => page.tasks) ?? [];
  const opened = rows.find((task) => task.id === params.get("task"));
  const cancel = async (task: Task) => {
    try {
      await api.post(`/api/tasks/${encodeURIComponent(task.id)}/cancel`);
      toast("The task is cancelled.");
    } catch (failed) {
      toastError(failed);
    }
    await client.invalidateQueries({ queryKey: ["tasks"] });
  };
  if (error !== null)
    return (
      <div className="pad">
        <ErrorNotice error={error} onRetry={() => void refetch()} />
      </div>
    );
  if (data === undefined) return <Loading />;
  return (
    <>
      <Table
        label="Tasks"
        columns={COLUMNS}
        rows={rows}
        rowId={(task) => task.id}
        selected={params.get("task") ?? undefined}
        onOpen={(task) => setParams({ task: task.id })}
        onEnd={() => hasNextPage && !isFetchingNextPage && void fetchNextPage()}
        empty={
          <Empty icon="team" title={team !== null || state !== null ? "No task fits" : "No team has had a task yet"}>
            <p>A task is work for a team: from you, from another team, or from a trigger. Its result comes back once.</p>
            <pre>dragoman teams run research "What is new?"</pre>
          </Empty>
        }
      />
      <Dialog open={opened !== undefined} look="sheet" onClose={() => setParams({ task: null })} title={opened?.id ?? "Task"}>
        {opened !== undefined && (
          <div className="teams-sheet">
            <p className="teams-text">{opened.task}</p>
            <Details
              rows={[
                ["State", <Status status={opened.state} />],
                ["Team", opened.team],
                ["From", `${opened.source}, for ${opened.owner}`],
                ["Priority", opened.priority],
                ["Given", <Time at={opened.createdAt} />],
                ["Took", <Duration seconds={opened.endedAt === null ? null : opened.endedAt - (opened.startedAt ?? opened.createdAt)} />],
                ["Attempts", String(opened.attempts)],
              ]}
            />
            {opened.error !== null && <ErrorNotice error={new Error(opened.error)} />}
            {opened.result !== null && <p className="teams-text">{opened.result}</p>}
            <div className="teams-actions">
              <Link className="btn" href={`/chat/${encodeURIComponent(opened.sessionId)}`}>
                Open its session
              </Link>
              {opened.runId !== null && (
                <Link className="btn" href={`/runs/${encodeURIComponent(opened.runId)}`}>
                  Open its run
                </Link>
              )}
              {["queued", "running", "waiting"].includes(opened.state) && (
                <Button look="danger" onClick={() => void cancel(opened)}>
                  Cancel
                </Button>
              )}
            </div>
          </div>
        )}
      </Dialog>
    </>
  );
}

const COLUMNS: Column<Task>[] = [
  { id: "state", title: "State", width: "96px", cell: (task) => <Status status={task.state} /> },
  { id: "task", title: "Task", width: "minmax(90px, 3fr)", cell: (task) => task.task },
  { id: "team", title: "Team", width: "minmax(80px, 1fr)", wide: true, cell: (task) => task.team },
  { id: "source", title: "From", width: "80px", wide: true, cell: (task) => <span className="muted">{task.source}</span> },
  { id: "owner", title: "Owner", width: "100px", wide: true, cell: (task) => task.owner },
  {
    id: "took",
    title: "Took",
    width: "84px",
    numeric: true,
    wide: true,
    cell: (task) => <Duration seconds={task.endedAt === null ? null : task.endedAt - (task.startedAt ?? task.createdAt)} />,
  },
  { id: "at", title: "Given", width: "96px", cell: (task) => <Time at={task.createdAt} /> },
];
