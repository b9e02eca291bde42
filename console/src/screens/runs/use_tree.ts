/** A call tree as it grows: read as a stream of nodes, then kept up by events and by what changed since. */
import { useEffect, useRef, useState } from "react";
import { send } from "../../api/client";
import { useEvents, type HubEvent } from "../../api/events";
import { useSession } from "../../api/session";
import { CallTree } from "./tree";
import type { Head, Root } from "./types";

export interface TreeState {
  tree: CallTree | null;
  head: Head | null;
  error: unknown;
  loading: boolean;
  /** Where more calls are, if the tree was too large. */
  next: string | null;
  /** Whether everything is here. */
  complete: boolean;
  /** Changes with each change of the tree. */
  version: number;
}

const REDRAW = 200; // ms between two buildings of a tree that grows
const DRAW_AGAIN = 500; // ms between two drawings of a tree that is read; each has at least twice as many nodes
const LOOK_AGAIN = 5_000; // ms: what other hosts do is not told by events of calls
const OVERLAP = 2; // seconds
const MAX_NODES = 200_000; // the most that the hub sends at once

export interface TreeActions {
  reload: () => void;
  /** Read the calls behind `next`. */
  loadMore: () => Promise<void>;
  /** Read what is below a call, or below the run of a task. */
  loadBelow: (node: string) => Promise<void>;
}

export function useTree(id: string): TreeState & TreeActions {
  const [state, setState] = useState<TreeState>(START);
  const [round, setRound] = useState(0);
  const current = useRef<Current>({ ...NOTHING });

  const redraw = useRef<() => void>(() => undefined);
  redraw.current = () => {
    const now = current.current;
    now.timer ??= window.setTimeout(() => {
      now.timer = null;
      now.tree?.build();
      setState((before) => ({ ...before, tree: now.tree, head: now.head, version: before.version + 1 }));
    }, REDRAW);
  };

  useEffect(() => {
    const controller = new AbortController();
    current.current = { ...NOTHING };
    setState(START);
    const read = async () => {
      let tree: CallTree | null = null;
      let drawnAt = -DRAW_AGAIN;
      let drawn = 0;
      const draw = (more: Partial<TreeState> = {}) => {
        tree?.build();
        drawnAt = performance.now();
        drawn = tree?.size ?? 0;
        setState((before) => ({ ...before, tree, head: current.current.head, version: before.version + 1, ...more }));
      };
      for await (const line of readLines(nodesPath(id), { limit: MAX_NODES }, controller.signal)) {
        const now = current.current;
        if (line.head !== undefined) {
          tree = now.tree = new CallTree(line.head.root);
          tree.setHead(line.head.root, line.head.fields);
          now.head = line.head;
          now.asOf = line.head.now;
        } else if (line.nodes !== undefined && tree !== null) {
          tree.add(line.nodes);
          if (line.nodes.length > 0 && tree.size > 2 * drawn && performance.now() - drawnAt > DRAW_AGAIN) draw();
        } else if (line.end !== undefined && tree !== null) {
          draw({ loading: false, next: line.end.next, complete: line.end.complete });
          return;
        }
      }
      throw new Error("The answer was cut off.");
    };
    read().catch((error: unknown) => {
      if (!controller.signal.aborted) setState((before) => ({ ...before, error, loading: false }));
    });
    return () => controller.abort();
  }, [id, round]);

  /** Read what was left out: behind `next`, or below one call. */
  const readMore = async (path: string, query: Record<string, string | number>, under: string | null = null) => {
    const { tree } = current.current;
    if (tree === null) return;
    setState((before) => ({ ...before, loading: true }));
    let end: Line["end"];
    try {
      for await (const line of readLines(path, query)) {
        if (line.nodes !== undefined) tree.add(line.nodes, under);
        end = line.end ?? end;
      }
    } finally {
      tree.build();
      setState((before) => ({ ...before, loading: false, version: before.version + 1 }));
    }
    if (end === undefined) throw new Error("The answer was cut off.");
    return end;
  };
  const loadMore = async () => {
    const end = await readMore(nodesPath(id), { limit: MAX_NODES, after: state.next ?? "" });
    if (end !== undefined) setState((before) => ({ ...before, next: end.next, complete: end.complete }));
  };
  const loadBelow = async (node: string) => {
    const under = current.current.tree?.get(node)?.kind === "run" ? node : null;
    await readMore(nodesPath(node), { limit: MAX_NODES }, under);
  };

  const look = useRef<() => void>(() => undefined);
  look.current = () => {
    const now = current.current;
    if (now.tree === null || state.loading) {
      now.missed = true;
      return;
    }
    const { tree, asOf } = now;
    const count = ++now.looks;
    const read = async () => {
      for await (const line of readLines(nodesPath(id), { since: asOf - OVERLAP })) {
        if (line.head !== undefined) {
          if (count < now.shown) return; // a later look was answered first
          now.shown = count;
          tree.setHead(line.head.root, line.head.fields);
          now.head = line.head;
          now.asOf = line.head.now;
        } else if (line.nodes !== undefined) tree.add(line.nodes);
      }
      redraw.current();
    };
    read().catch(() => undefined); // the next look finds it
  };

  useEvents(["call.", "run.", "task.", "approval."], (events) => {
    const { tree, head } = current.current;
    let isOld = events.some(({ name }) => name === "reset" || name === "resumed");
    let changed = false;
    current.current.missed ||= state.loading; // what is being read may be older
    for (const event of tree === null || head === null || isOld ? [] : events) {
      if (!event.name.startsWith("call.")) isOld ||= concerns(tree!, head!.root, event);
      else if (belongs(tree!, event, id)) {
        const step = Number(event.data["step"] ?? 0);
        // The model call of a step has ended when its first call begins; no event tells of it.
        isOld ||= step > current.current.step;
        current.current.step = Math.max(step, current.current.step);
        tree!.put(nodeOf(event, id));
        changed = true;
      }
    }
    if (isOld) look.current();
    if (changed) redraw.current();
  });

  useEffect(() => {
    if (state.loading || !current.current.missed) return;
    current.current.missed = false;
    look.current();
  }, [state.loading]);

  const { hosts } = useSession();
  const looks = hosts && state.head !== null && isUnderWay(state.head.root);
  useEffect(() => {
    if (!looks) return;
    const timer = setInterval(() => document.visibilityState === "visible" && look.current(), LOOK_AGAIN);
    return () => clearInterval(timer);
  }, [looks]);

  return { ...state, reload: () => setRound((now) => now + 1), loadMore, loadBelow };
}

/** Whether calls go on below a root: not where a run waits for somebody. */
function isUnderWay(root: Root): boolean {
  if (root.status !== "pending" || root.kind !== "run") return root.status === "running" || root.status === "pending";
  return root.waitsFor.some((each) => each.kind === "task");
}

interface Current {
  tree: CallTree | null;
  head: Head | null;
  /** When the hub was asked last. */
  asOf: number;
  timer: number | null;
  /** The last step that calls were made in. */
  step: number;
  /** Whether something has changed while the tree was read. */
  missed: boolean;
  /** How often was looked again, and which of these answers is shown. */
  looks: number;
  shown: number;
}

const NOTHING: Current = { tree: null, head: null, asOf: 0, timer: null, step: 0, missed: false, looks: 0, shown: 0 };
const START: TreeState = { tree: null, head: null, error: null, loading: true, next: null, complete: true, version: 0 };

function nodesPath(id: string): string {
  return `/api/calls/${encodeURIComponent(id)}/nodes`;
}

interface Line {
  head?: Head;
  nodes?: unknown[][];
  end?: { calls: number; next: string | null; complete: boolean };
}

async function* readLines(path: string, query: Record<string, string | number>, signal?: AbortSignal): AsyncGenerator<Line> {
  const response = await send("GET", path, { query, signal });
  const reader = response.body!.getReader();
  const decoder = new TextDecoder();
  const pieces: string[] = []; // of a line that has not ended: a line may have a megabyte
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const text = decoder.decode(value, { stream: true });
      let start = 0;
      for (let end = text.indexOf("\n"); end >= 0; end = text.indexOf("\n", start)) {
        pieces.push(text.slice(start, end));
        start = end + 1;
        yield JSON.parse(pieces.join("")) as Line;
        pieces.length = 0;
      }
      if (start < text.length) pieces.push(text.slice(start));
    }
  } finally {
    void reader.cancel().catch(() => undefined);
  }
}

/** Whether a run, task or approval changes the tree, or what its root waits for. */
function concerns(tree: CallTree, root: Root, event: HubEvent): boolean {
  const isOfSession = root.sessionId !== null && event.sessionId === root.sessionId;
  if (event.name.startsWith("task.")) return isOfSession;
  if (event.name.startsWith("approval.")) return isOfSession || tree.get(String(event.data["callId"])) !== undefined;
  // Another run of the session may be what a run that waits continues in.
  return (isOfSession && root.status === "pending") || tree.get(String(event.data["runId"])) !== undefined;
}

function belongs(tree: CallTree, event: HubEvent, id: string): boolean {
  const { data } = event;
  if (data["runId"] === id || tree.get(String(data["runId"])) !== undefined) return true;
  return tree.get(String(data["callId"])) !== undefined || tree.get(String(data["parentId"])) !== undefined;
}

/** The node of a call; one of the run of a task, which is in the tree itself, is below that. */
function nodeOf(event: HubEvent, root: string) {
  const { data } = event;
  const above = data["runId"] === root || data["runId"] === null ? null : String(data["runId"]);
  const startedAt = Number(data["startedAt"] ?? event.createdAt);
  const ended = typeof data["endedAt"] === "number" ? data["endedAt"] : null;
  return {
    id: String(data["callId"]),
    parentId: data["parentId"] === null ? above : String(data["parentId"]),
    kind: "call" as const,
    name: String(data["operation"]),
    status: String(data["status"] ?? "running"),
    startedAt,
    duration: ended === null ? null : Math.max(0, ended - startedAt),
    step: (data["step"] as number | null) ?? null,
    error: (data["code"] as string | null) ?? null,
    effect: (data["effect"] as string | null) ?? null,
    attempts: (data["attempts"] as number | null) ?? null,
    cost: (data["cost"] as number | null) ?? null,
  };
}
