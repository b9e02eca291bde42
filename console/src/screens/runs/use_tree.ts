/** A call tree as it grows: read as a stream of nodes, then kept up by events and by what changed since. */
import { useEffect, useRef, useState } from "react";
import { send } from "../../api/client";
import { useEvents, type HubEvent } from "../../api/events";
import { CallTree } from "./tree";
import type { Head } from "./types";

export interface TreeState {
  tree: CallTree | null;
  head: Head | null;
  error: unknown;
  loading: boolean;
  /** Where more calls are, if the tree was too large. */
  next: string | null;
  /** Changes with each change of the tree. */
  version: number;
}

const REDRAW = 200; // ms between two buildings of a tree that grows
const LOOK_AGAIN = 5_000; // ms: what other hosts do is not told by events of calls
const OVERLAP = 2; // seconds
const MAX_NODES = 200_000; // the most that the hub sends at once

export function useTree(id: string): TreeState & { reload: () => void } {
  const [state, setState] = useState<TreeState>(START);
  const [round, setRound] = useState(0);
  const current = useRef<{ tree: CallTree | null; head: Head | null; asOf: number; timer: number | null }>({
    tree: null,
    head: null,
    asOf: 0,
    timer: null,
  });

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
    current.current = { tree: null, head: null, asOf: 0, timer: null };
    setState(START);
    const read = async () => {
      let tree: CallTree | null = null;
      let drawnAt = 0;
      for await (const line of readLines(`/api/calls/${encodeURIComponent(id)}/nodes`, { limit: MAX_NODES }, controller.signal)) {
        const now = current.current;
        if (line.head !== undefined) {
          tree = now.tree = new CallTree(line.head.root);
          tree.setHead(line.head.root, line.head.fields);
          now.head = line.head;
          now.asOf = line.head.now;
        } else if (line.nodes !== undefined && tree !== null) {
          tree.add(line.nodes);
          if (line.nodes.length > 0 && performance.now() - drawnAt > 1_000) {
            tree.build();
            drawnAt = performance.now();
            setState((before) => ({ ...before, tree, head: now.head, version: before.version + 1 }));
          }
        } else if (line.end !== undefined && tree !== null) {
          tree.build();
          const { next } = line.end;
          setState((before) => ({ ...before, tree, head: now.head, loading: false, next, version: before.version + 1 }));
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

  const look = useRef<() => void>(() => undefined);
  look.current = () => {
    const now = current.current;
    if (now.tree === null || state.loading) return;
    const { tree, asOf } = now;
    const read = async () => {
      for await (const line of readLines(`/api/calls/${encodeURIComponent(id)}/nodes`, { since: asOf - OVERLAP })) {
        if (line.head !== undefined) {
          tree.setHead(line.head.root, line.head.fields);
          now.head = line.head;
          now.asOf = line.head.now;
        } else if (line.nodes !== undefined) tree.add(line.nodes);
      }
      redraw.current();
    };
    read().catch(() => undefined); // the next look finds it
  };

  useEvents(["call.", "run."], (events) => {
    const { tree } = current.current;
    if (events.some((event) => event.name === "reset")) {
      look.current();
      return;
    }
    if (tree === null) return;
    let changed = false;
    for (const event of events) {
      if (event.name.startsWith("run.")) {
        if (event.data["runId"] === id) look.current();
      } else if (belongs(tree, event, id)) {
        tree.put(nodeOf(event));
        changed = true;
      }
    }
    if (changed) redraw.current();
  });

  const running = state.head !== null && ["running", "pending"].includes(state.head.root.status);
  useEffect(() => {
    if (!running) return;
    const timer = setInterval(() => document.visibilityState === "visible" && look.current(), LOOK_AGAIN);
    return () => clearInterval(timer);
  }, [running]);

  return { ...state, reload: () => setRound((now) => now + 1) };
}

const START: TreeState = { tree: null, head: null, error: null, loading: true, next: null, version: 0 };

interface Line {
  head?: Head;
  nodes?: unknown[][];
  end?: { calls: number; next: string | null };
}

async function* readLines(path: string, query: Record<string, number>, signal?: AbortSignal): AsyncGenerator<Line> {
  const response = await send("GET", path, { query, signal });
  const reader = response.body!.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) yield JSON.parse(line) as Line;
    }
  } finally {
    void reader.cancel().catch(() => undefined);
  }
}

function belongs(tree: CallTree, event: HubEvent, id: string): boolean {
  const { data } = event;
  if (data["runId"] === id) return true;
  return tree.get(String(data["callId"])) !== undefined || tree.get(String(data["parentId"])) !== undefined;
}

function nodeOf(event: HubEvent) {
  const { data } = event;
  const startedAt = Number(data["startedAt"] ?? event.createdAt);
  const ended = typeof data["endedAt"] === "number" ? data["endedAt"] : null;
  return {
    id: String(data["callId"]),
    parentId: data["parentId"] === null ? null : String(data["parentId"]),
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
