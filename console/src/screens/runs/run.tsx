/** One run, or one call with what is below it: figures, tree and waterfall, details; messages, events, prompt. */
import { useMemo, useRef, useState } from "react";
import { Link, useLocation } from "wouter";
import { api, apiUrl, HubError } from "../../api/client";
import {
  Button,
  Dialog,
  Empty,
  ErrorNotice,
  Icon,
  Loading,
  ScreenHeader,
  Status,
  Tabs,
  copyText,
  count,
  duration,
  focusList,
  money,
  toast,
  toastError,
  useKeys,
  useNarrow,
  useTick,
  useUrlState,
  WaitLine,
  type Wait,
  spellTurns,
} from "../../components";
import { DetailsPane } from "./details";
import { EventsTab, MessagesTab, PromptTab, curlOfRun } from "./messages";
import type { CallTree } from "./tree";
import { TreeView } from "./tree_view";
import type { Head, Root } from "./types";
import { useTree, type TreeActions, type TreeState } from "./use_tree";

const TABS = [
  { id: "tree", label: "Tree" },
  { id: "messages", label: "Messages" },
  { id: "events", label: "Events" },
  { id: "prompt", label: "Prompt" },
];

export function RunPage({ id }: { id: string }) {
  const state = useTree(id);
  const { tree, head, error, reload } = state;
  if (error instanceof HubError && error.status === 404) {
    return (
      <>
        <ScreenHeader title={shortId(id)} back={<Back />} />
        <Empty icon="runs" title="There is no such run or call">
          <p>The address may be misspelt, the run may belong to somebody else, or it is older than what this hub keeps.</p>
          <Link href="/runs" className="btn">
            All runs
          </Link>
        </Empty>
      </>
    );
  }
  if (error !== null) {
    return (
      <>
        <ScreenHeader title="Run" back={<Back />} />
        <div className="pad">
          <ErrorNotice error={error} onRetry={reload} />
        </div>
      </>
    );
  }
  if (tree === null || head === null) {
    return (
      <>
        <ScreenHeader title={shortId(id)} back={<Back />} />
        <Loading />
      </>
    );
  }
  return <Loaded key={id} state={state} tree={tree} head={head} />;
}

function Back() {
  return (
    <Link href="/runs" className="btn btn-quiet btn-icon" aria-label="All runs" title="All runs">
      <Icon name="left" size={14} />
    </Link>
  );
}

function Loaded({ state, tree, head }: { state: TreeState & TreeActions; tree: CallTree; head: Head }) {
  const { loading, complete, version } = state;
  const { root, path } = head;
  const [params, setParams] = useUrlState();
  const [, go] = useLocation();
  const [changes, setChanges] = useState(0);
  const [sheet, setSheet] = useState(false);
  const narrow = useNarrow();
  const offset = useRef(head.now - Date.now() / 1000);
  const tabs = root.kind === "run" ? TABS : TABS.filter((each) => each.id === "tree" || each.id === "events");
  const tab = tabs.some((each) => each.id === params.get("tab")) ? params.get("tab")! : "tree";
  const filter = useMemo(() => ({ failed: params.get("failed") === "1", text: params.get("q") ?? "" }), [params]);
  const wanted = params.get("call") ?? root.id;
  const selected = tree.get(wanted) === undefined ? root.id : wanted;
  const node = tree.get(selected) ?? tree.root;
  const step = (by: 1 | -1) => {
    const at = tabs.findIndex((each) => each.id === tab);
    setParams({ tab: tabs[(at + by + tabs.length) % tabs.length]!.id });
  };
  useKeys("Run", {
    "[": ["previous tab", () => step(-1)],
    "]": ["next tab", () => step(1)],
    f: ["only failed", () => setParams({ failed: filter.failed ? null : "1" })],
    u: ["all runs", () => go("/runs")],
    c: ["copy the id", () => void copyText(selected)],
    Escape: ["close the details, clear the filter", () => (sheet ? setSheet(false) : setParams({ failed: null, q: null }))],
  });
  const isCut = !complete && node.kind === "call";
  const isTaskRun = node.kind === "run" && node !== tree.root;
  const canLoadBelow = (isCut || isTaskRun) && node.children.length === 0;
  const loadBelow = canLoadBelow ? () => state.loadBelow(node.id) : null;
  const select = (id: string) => setParams({ call: id === root.id ? null : id });
  return (
    <>
      <Header head={head} selected={selected} />
      {root.status === "pending" && <WaitLine waits={waitsOf(root)} />}
      {path.length > 0 && (
        <nav className="runs-path" aria-label="Path">
          {path.map((each) => (
            <span key={each.id}>
              <Link href={each.kind === "task" ? `/teams?tab=tasks&task=${encodeURIComponent(each.id)}` : `/runs/${encodeURIComponent(each.id)}`}>{spellTurns(each.kind === "call" ? each.name : `${each.kind} ${each.name}`)}</Link>
              <span aria-hidden="true"> / </span>
            </span>
          ))}
          <span>{spellTurns(root.name)}</span>
        </nav>
      )}
      <Figures tree={tree} head={head} offset={offset.current} />
      <Tabs label="Views of the run" items={tabs} active={tab} onChange={(to) => setParams({ tab: to === "tree" ? null : to })} />
      {tab === "tree" && (
        <div className="runs-split">
          <div className="runs-left">
            <TreeToolbar tree={tree} loading={loading} failed={filter.failed} text={filter.text} setParams={setParams} />
            <TreeView
              tree={tree}
              version={version + changes}
              filter={filter}
              selected={selected}
              onSelect={(to) => {
                select(to);
                if (narrow && to === selected) setSheet(true);
              }}
              onChange={() => setChanges((now) => now + 1)}
              onDetails={() => narrow && setSheet(true)}
              now={offset.current}
            />
            {!complete && (
              <div className="runs-more muted small" role="note">
                <span>
                  {count(tree.size)} of {count(root.calls)}
                  {root.complete ? "" : "+"} calls are loaded.
                </span>
                {state.next === null ? (
                  <span>Select a call and load what is below it, or export the tree.</span>
                ) : (
                  <Button busy={loading} onClick={() => void state.loadMore().catch(toastError)}>
                    Load more calls
                  </Button>
                )}
              </div>
            )}
          </div>
          {narrow ? (
            <>
              <div className="runs-open-sheet">
                <Button onClick={() => setSheet(true)}>Details of {spellTurns(node.name)}</Button>
              </div>
              <Dialog open={sheet} onClose={() => setSheet(false)} title="Details" look="sheet">
                <DetailsPane node={node} root={root} onLoadBelow={loadBelow} />
              </Dialog>
            </>
          ) : (
            <aside className="runs-side" aria-label="Details">
              <DetailsPane node={node} root={root} onLoadBelow={loadBelow} />
            </aside>
          )}
        </div>
      )}
      {tab === "messages" && <MessagesTab root={root} />}
      {tab === "prompt" && <PromptTab root={root} />}
      {tab === "events" && <EventsTab tree={tree} version={version} onOpen={(to) => setParams({ tab: null, call: to })} />}
    </>
  );
}

function Header({ head, selected }: { head: Head; selected: string }) {
  const { root } = head;
  const [asking, setAsking] = useState(false);
  const [busy, setBusy] = useState(false);
  const narrow = useNarrow();
  const running = root.status === "running" || (root.status === "pending" && root.kind === "call");
  const abort = async () => {
    setBusy(true);
    try {
      const { aborted } = await api.post<{ aborted: boolean }>(`/api/calls/${encodeURIComponent(root.id)}/abort`);
      toast(aborted ? "Stopped" : "It was not under way any more");
    } catch (error) {
      toastError(error);
    } finally {
      setBusy(false);
      setAsking(false);
    }
  };
  const copy = async () => {
    try {
      await copyText(await curlOfRun(root));
    } catch (error) {
      toastError(error);
    }
  };
  const title = root.sessionTitle === null ? null : <>session “<bdi>{spellTurns(root.sessionTitle)}</bdi>” · </>;
  return (
    <ScreenHeader
      back={<Back />}
      title={<span title={root.id}>{shortId(root.id)}</span>}
      sub={
        <>
          <Status status={root.status === "pending" ? "waiting" : root.status} />{" "}
          {!narrow && (
            <span>
              {title}
              {spellTurns(root.owner)}
              {root.door !== null && ` · ${root.door}`}
            </span>
          )}
        </>
      }
    >
      {!narrow && (
        <>
          {root.kind === "run" && (
            <Button icon="copy" onClick={() => void copy()}>
              Copy as curl
            </Button>
          )}
          <a className="btn" href={apiUrl(`/api/calls/${encodeURIComponent(root.id)}/export`)} download>
            Export
          </a>
        </>
      )}
      {running && (
        <Button look="danger" icon="stop" onClick={() => setAsking(true)}>
          Abort
        </Button>
      )}
      <Dialog
        open={asking}
        onClose={() => setAsking(false)}
        title="Abort?"
        actions={
          <>
            <Button onClick={() => setAsking(false)}>Let it run</Button>
            <Button look="danger" icon="stop" busy={busy} onClick={() => void abort()}>
              Abort
            </Button>
          </>
        }
      >
        <p>
          {root.kind === "run" ? "The run is" : "The call is"} stopped with everything below it. What was done stays done.
          {selected !== root.id && " This is about the whole tree, not the call that is selected."}
        </p>
      </Dialog>
    </ScreenHeader>
  );
}

function Figures({ tree, head, offset }: { tree: CallTree; head: Head; offset: number }) {
  const { root } = head;
  const running = root.endedAt === null && root.status === "running";
  useTick(running ? 1_000 : 3_600_000);
  const first = tree.root.children.find((node) => node.kind === "model" && node.firstByte !== null);
  const firstToken = first === undefined ? null : first.startedAt - root.startedAt + (first.firstByte ?? 0);
  const took = root.duration ?? (running ? Date.now() / 1000 + offset - root.startedAt : null);
  const figures: [string, string][] = [["Duration", duration(took)]];
  if (root.kind === "run") {
    figures.push(["First token", duration(firstToken)]);
    figures.push(["Steps", count(root.steps ?? root.modelCalls)]);
  }
  figures.push(["Tokens", root.inputTokens === null ? "–" : `${count(root.inputTokens)} in · ${count(root.outputTokens)} out`]);
  figures.push(["Cost", `${money(root.cost)}${root.unpriced > 0 && root.cost !== null ? " +" : ""}`]);
  const calls = `${count(root.calls)}${root.complete ? "" : "+"}`;
  figures.push(["Calls", root.failed > 0 ? `${calls} · ${count(root.failed)} failed` : calls]);
  return (
    <dl className="runs-figures">
      {figures.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd className="num">{value}</dd>
        </div>
      ))}
    </dl>
  );
}

function TreeToolbar(props: {
  tree: CallTree;
  loading: boolean;
  failed: boolean;
  text: string;
  setParams: (changes: Record<string, string | null>) => void;
}) {
  const { tree, failed, text, setParams } = props;
  const input = useRef<HTMLInputElement>(null);
  useKeys("Run", { "/": ["filter", () => input.current?.focus()] });
  return (
    <div className="runs-filter">
      <label className="search">
        <Icon name="search" size={14} />
        <input
          ref={input}
          type="search"
          placeholder="Filter calls"
          aria-label="Filter calls"
          value={text}
          onChange={(event) => setParams({ q: event.target.value })}
          onKeyDown={(event) => {
            if (event.key === "Escape") setParams({ q: null });
            if (event.key === "Escape" || event.key === "Enter" || event.key === "ArrowDown") focusList();
          }}
        />
      </label>
      <Button aria-pressed={failed} className={failed ? "runs-pressed" : ""} icon="x" onClick={() => setParams({ failed: failed ? null : "1" })}>
        {tree.failed.length === 0 ? "Failed" : `${count(tree.failed.length)} failed`}
      </Button>
      <span className="muted small" role="status">
        {props.loading ? `${count(tree.size)} calls so far…` : ""}
      </span>
    </div>
  );
}

/** A call that is pending waits for its own approval. */
function waitsOf(root: Root): Wait[] {
  return root.waitsFor.length > 0 ? root.waitsFor : [{ kind: "approval", id: null, name: root.name }];
}

export function shortId(id: string): string {
  return id.length <= 16 ? id : `${id.slice(0, 9)}…${id.slice(-3)}`;
}
