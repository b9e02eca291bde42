/** The answers of /api/usage?bucket= and /api/budgets. */
export interface Percentiles<Value = number | null> {
  p50: Value;
  p95: Value;
  p99: Value;
}

export interface Points {
  calls: number[];
  failed: number[];
  unpriced: number[];
  inputTokens: number[];
  outputTokens: number[];
  cost: number[];
  firstByte: Percentiles<(number | null)[]>;
  duration: Percentiles<(number | null)[]>;
}

export interface UsageRow {
  group: Record<string, string | null>;
  calls: number;
  failed: number;
  unpriced: number;
  cost: number | null;
  inputTokens: number;
  outputTokens: number;
  firstByte: Percentiles;
  duration: Percentiles;
  points?: Points;
}

export interface UsageAnswer {
  bucket: "hour" | "day";
  groupBy: string[];
  since: number;
  until: number;
  asOf: number;
  times: number[];
  total: UsageRow & { points: Points };
  rows: UsageRow[];
  more: boolean;
  sampled: boolean;
}

export interface Budget {
  window: "day" | "month" | "total";
  limit: number;
  spent: number;
  reserved: number;
  resetsAt: number | null;
}

export interface BudgetSubject {
  kind: "key" | "owner";
  id: string;
  owner: string;
  name: string | null;
  limits: Record<string, number>;
  budgets: Budget[];
}

export interface BudgetAnswer {
  budgets: BudgetSubject[];
  more: boolean;
  asOf: number;
  unpriced: "refuse" | "allow";
}
