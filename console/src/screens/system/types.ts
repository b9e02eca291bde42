/** The answers of the paths that this screen reads. */
export interface SystemState {
  asOf: number;
  version: string;
  python: string;
  host: { id: string; name: string; draining: boolean };
  startedAt: number;
  memory: number | null;
  processors: number | null;
  runs: number;
  queue: { waiting: number; capped: boolean; oldest: number | null };
  spooled: number;
  database: { kind: "sqlite" | "postgresql"; up: boolean; problem: string | null; size: number | null };
  retention: Record<string, number | null>;
}

export interface Host {
  id: string;
  name: string;
  version: string;
  runs: number;
  since: number;
  draining: boolean;
  self: boolean;
}

export interface QueuedMessage {
  id: string;
  sessionId: string;
  owner: string;
  mode: string;
  background: boolean;
  createdAt: number;
}

export interface Provider {
  name: string;
  family: string;
  url: string | null;
  state: "up" | "cooling-down";
  keys: { name: string; busy: number; cooldown: number }[];
  lastHour: {
    requests: number;
    failed: number;
    errorRate: number | null;
    firstByte: { p50: number | null; p95: number | null };
    duration: { p50: number | null; p95: number | null };
  };
}

export interface LogLine {
  number: number;
  time: number;
  level: "debug" | "info" | "warning" | "error";
  logger: string;
  message: string;
  requestId?: string;
  fields?: Record<string, string | number>;
}

export interface LogAnswer {
  lines: LogLine[];
  last: number;
  ring: string;
}

export interface TableStatus {
  name: string;
  rows: number;
  oldest: number | null;
  keptFor: number | null;
  expired: number;
}

export interface TablesAnswer {
  asOf: number;
  kind: string;
  server: string;
  revision: string | null;
  size: number | null;
  tables: TableStatus[];
}

/** Seconds as days, as a configuration writes them. */
export function period(seconds: number | null): string {
  if (seconds === null) return "for ever";
  if (seconds >= 86_400) return `${Math.round(seconds / 86_400)} days`;
  return seconds >= 3_600 ? `${Math.round(seconds / 3_600)} hours` : `${Math.round(seconds / 60)} minutes`;
}
