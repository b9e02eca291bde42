/** What the hub tells of runs and calls. */
import type { Wait } from "../../components";

export interface Root {
  id: string;
  kind: "run" | "call" | "model";
  name: string;
  status: string;
  owner: string;
  startedAt: number;
  endedAt: number | null;
  duration: number | null;
  sessionId: string | null;
  sessionTitle: string | null;
  agent: string | null;
  door: string | null;
  error: string | null;
  /** What a run waits for after it has ended, if it is pending. */
  waitsFor: Wait[];
  effect: string | null;
  input: string | null;
  calls: number;
  failed: number;
  modelCalls: number;
  unpriced: number;
  cost: number | null;
  inputTokens: number | null;
  outputTokens: number | null;
  firstByte: number | null;
  complete: boolean;
  messageId?: string;
  finishReason?: string | null;
  steps?: number;
}

export interface RootPage {
  calls: Root[];
  next: string | null;
  now: number;
  counts?: { total: number; status: Record<string, number>; kind: Record<string, number>; capped: boolean };
}

export interface PathStep {
  id: string;
  kind: string;
  name: string;
  status: string;
}

export interface Head {
  root: Root;
  path: PathStep[];
  fields: string[];
  now: number;
}

export interface PolicyDecision {
  decision: string;
  rule?: { decision: string; operations?: string[]; effects?: string[]; agents?: string[]; identities?: string[]; reason?: string };
  standing?: string;
}

export interface CallDetails {
  id: string;
  kind?: undefined;
  operation: string;
  status: string;
  effect: string;
  owner: string;
  agent: string | null;
  source: string | null;
  idempotencyKey: string | null;
  inputHash: string;
  input: unknown;
  result: unknown;
  error: { code: string; message: string; hint?: string | null } | null;
  notes: string[];
  attempts: number | null;
  cost: number | null;
  policy: PolicyDecision | null;
  approvalId: string | null;
  approval: { id: string; status: string; answeredBy: string | null; answeredAt: number | null; reason: string | null } | null;
  below: { calls: number; failed: number; modelCalls: number; cost: number | null; inputTokens: number | null; outputTokens: number | null } | null;
  startedAt: number;
  endedAt: number | null;
  duration: number | null;
}

/** A model call, as a usage record. */
export interface ModelDetails {
  id: string;
  kind: "model";
  status: string;
  owner: string;
  provider: string | null;
  modelAsked: string | null;
  modelServed: string | null;
  finishReason: string | null;
  requestId: string | null;
  door: string | null;
  error: string | null;
  upstreamStatus: number | null;
  firstByte: number | null;
  duration: number | null;
  startedAt: number;
  cost: number | null;
  priceModel: string | null;
  usage: Record<string, number | boolean | null>;
}

/** `allow: web.*; agent support`, as a rule is written. */
export function ruleText(policy: PolicyDecision): string {
  const { rule } = policy;
  if (rule === undefined) return policy.standing === undefined ? "by default" : "always allowed";
  const parts = [`${rule.decision}: ${(rule.operations ?? ["*"]).join(", ")}`];
  if (rule.effects?.length) parts.push(`effect ${rule.effects.join(", ")}`);
  if (rule.agents?.length) parts.push(`agent ${rule.agents.join(", ")}`);
  if (rule.identities?.length) parts.push(`identity ${rule.identities.join(", ")}`);
  return parts.join("; ");
}

/** Whether a status is that of something that went wrong. */
export function isBad(status: string): boolean {
  return status === "failed" || status === "uncertain" || status === "denied";
}
