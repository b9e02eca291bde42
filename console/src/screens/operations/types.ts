/** The answers about operations, MCP servers and spokes. */
import type { Schema } from "./schema";

export interface OperationLine {
  id: string;
  namespace: string;
  summary: string;
  effect: "read" | "idempotent" | "once";
  effectClaimed?: boolean;
  source: string;
}

export interface OperationDetail extends OperationLine {
  description: string;
  inputSchema: Schema;
  outputSchema: Schema | null;
}

export interface SearchScore {
  words: number;
  coverage: number;
  name: "id" | "name" | "prefix" | null;
}

export interface SearchHit {
  tool: string;
  summary: string;
  signature: string;
  namespace: string;
  effect: OperationLine["effect"];
  source: string;
  score: SearchScore | null;
}

export interface SearchAnswer {
  tools: SearchHit[];
  more: number;
  namespaces: Record<string, number>;
  hint?: string;
}

export interface OperationPage {
  operations: OperationLine[];
  next: string | null;
  /** In the first page. */
  namespaces?: Record<string, number>;
}

export interface Failure {
  code: string;
  message: string;
  hint?: string | null;
  problems?: { path: string; expected: string; got: string }[];
}

export interface Outcome {
  callId: string;
  status: string;
  success: boolean;
  result?: unknown;
  error?: Failure;
  approvalId?: string;
  notes?: string[];
}

export interface PolicyMatch {
  decision: "allow" | "ask" | "deny";
  pattern: string | null;
  source: string;
  reason: string | null;
}

export interface PolicyAnswer extends PolicyMatch {
  operation: string;
  effect: string;
  agent: string | null;
  owner: string;
  asks: boolean;
  matches: PolicyMatch[];
}

export interface StatisticsAnswer {
  since: number;
  asOf: number;
  calls: number;
  capped: boolean;
  byStatus: Record<string, number>;
  p50: number | null;
  p95: number | null;
  p99: number | null;
  cost: number | null;
  lastCalls: { id: string; status: string; startedAt: number; duration?: number | null; owner: string; runId: string | null }[];
}

export interface McpServer {
  name: string;
  state: "starting" | "ready" | "failed" | "quarantined" | "lazy" | "disabled";
  since: number;
  error?: string;
  lastError?: string;
  lastErrorAt?: number;
  tools: number;
  waiting: number;
  problems?: string[];
  title?: string;
  protocol?: string;
  attempts?: number;
}

export interface DefinitionChange {
  name: string;
  kind: "new" | "changed";
  hash: string;
  diff: string;
}

export interface Spoke {
  id: string;
  name: string;
  owner: string;
  connected: boolean;
  calls: number;
  window: number;
  operations: string[];
}

export interface SpokeOperation {
  id: string;
  owner: string;
  sharing: "granted" | "approved" | "changed" | "private";
  hash: string;
  offered?: boolean;
  approvedBy?: string;
}
