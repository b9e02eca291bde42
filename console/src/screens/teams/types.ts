/** The answers about teams. */
export interface Team {
  name: string;
  parent: string | null;
  description: string;
  accepts: string[];
  model: string | null;
  allowedTools: string[];
  members: string[];
  subagents: string[];
  maxSteps: number;
  concurrency: number;
  budget: { usd: number | null; calls: number | null; seconds: number | null };
  generated: boolean;
  paused: boolean;
}

export interface TeamDetail extends Team {
  sections: { kind: string; source: string; hash: string; tokens: number }[];
  conflicts: unknown[];
}

export interface Task {
  id: string;
  team: string;
  state: "queued" | "running" | "waiting" | "done" | "failed" | "cancelled";
  result: string | null;
  error: string | null;
  task: string;
  owner: string;
  priority: string;
  source: string;
  sessionId: string;
  runId: string | null;
  attempts: number;
  createdAt: number;
  startedAt: number | null;
  endedAt: number | null;
}

export interface Trigger {
  id: string;
  team: string;
  name: string;
  owner: string;
  source: "api" | "file";
  state: "pending" | "active" | "disabled";
  reason?: string;
  type: string;
  task: string;
  config: Record<string, unknown>;
  failures: number;
  nextAt?: string;
  lastFiredAt?: string;
  hook?: string;
}

export interface Occurrence {
  occurrence: string;
  state: string;
  dueAt: string;
  firedAt: string;
  task?: string;
  cost?: number;
  result?: string;
  error?: string;
}

export interface Memory {
  id: string;
  key: string;
  type: string;
  content: string;
  active: boolean;
  createdAt: number;
  createdBy: string | null;
  reason: string | null;
}

export interface VaultSecret {
  name: string;
  handle: string;
  operations: string[];
  origins: string[];
  managed: boolean;
  plain: boolean;
  updatedAt: number;
}

export interface Skill {
  name: string | null;
  state: "active" | "proposed" | "invalid";
  level?: string;
  description?: string;
  operations?: string[];
  path?: string;
  source?: string | null;
  hash?: string;
  /** The beginning, if there is a `size`: the characters of all of it. */
  text?: string;
  size?: number;
  approval?: string;
  /** Of one that is proposed. */
  files?: { path: string; text: string }[];
  leftOut?: string[];
  problem?: string;
}

export interface Plugin {
  id: string;
  name: string;
  state: string;
  description?: string;
  effect?: string;
  hash: string;
  text?: string;
  reason?: string | null;
  approvedBy?: string | null;
  approval?: string;
}

/** ISO times as unix seconds, as the numbers of the components take them. */
export function seconds(iso: string | undefined): number | null {
  return iso === undefined ? null : new Date(iso).getTime() / 1000;
}
