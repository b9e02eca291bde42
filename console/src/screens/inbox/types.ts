/** What waits for a person. */
import type { PolicyDecision } from "../runs/types";

export interface Item {
  operation: string;
  input: unknown;
  reason: string | null;
  question: { text: string; options: string[] } | null;
  agent: string | null;
  previous?: { approvalId: string; input: unknown; answeredAt: number | null; answeredBy: string | null } | null;
}

export interface Approval {
  id: string;
  status: string;
  owner: string;
  operation: string;
  operations: string[];
  input: unknown;
  question: { text: string; options: string[] } | null;
  answer: string | null;
  items: Item[];
  createdAt: number;
  expiresAt: number;
  answerers: string[];
  mayAnswer: boolean;
  mayAlwaysAllow: boolean;
  agent: string | null;
  callId: string | null;
  runId: string | null;
  sessionId: string | null;
  sessionTitle: string | null;
  policy: PolicyDecision | null;
  answeredAt: number | null;
  answeredBy: string | null;
  reason: string | null;
}

export interface ApprovalPage {
  approvals: Approval[];
  next: string | null;
  now: number;
  counts?: Record<string, number>;
}

export interface StandingRule {
  id: string;
  owner: string;
  operation: string;
  provider: string;
  agent: string | null;
  createdAt: number;
  createdBy: string;
  inForce: boolean | null;
}

/** A request whose entry, or the first answer in it, takes the focus. */
export interface FocusTarget {
  id: string;
  isAnswer: boolean;
}
