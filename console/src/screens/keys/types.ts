/** API keys, as /api/keys tells of them. */
import { hubTime } from "../../api/clock";
import type { Scope } from "../../api/session";

export interface KeyLimits {
  requests_per_minute?: number | null;
  tokens_per_minute?: number | null;
  parallel?: number | null;
  usd_per_day?: number | null;
  usd_per_month?: number | null;
  usd_total?: number | null;
}

export interface ApiKey {
  id: string;
  owner: string;
  name: string | null;
  prefix: string;
  scopes: Scope[];
  models: string[] | null;
  limits: KeyLimits;
  createdAt: number;
  expiresAt: number | null;
  revokedAt: number | null;
  lastUsedAt: number | null;
}

/** A key with its secret, which only the answer that makes it has. */
export interface NewKey extends ApiKey {
  key: string;
}

export type KeyState = "valid" | "expires soon" | "expired" | "revoked";
const SOON = 7 * 86_400;

export function stateOf(key: ApiKey, now = hubTime()): KeyState {
  if (key.revokedAt !== null) return "revoked";
  if (key.expiresAt === null) return "valid";
  if (key.expiresAt <= now) return "expired";
  return key.expiresAt - now < SOON ? "expires soon" : "valid";
}

export const SCOPES: [scope: Scope, what: string][] = [
  ["gateway", "models under /v1, for clients of OpenAI and Anthropic"],
  ["chat", "sessions, runs, agents and teams"],
  ["operations", "search and call operations"],
  ["spoke", "offer operations from another process"],
  ["runner", "answer in sessions with an agent of its own"],
  ["admin", "the data of all owners, keys, and the hub itself"],
];
export const DEFAULT_SCOPES: Scope[] = ["gateway", "chat", "operations"];

export const LIMITS: [name: keyof KeyLimits, label: string, unit: string, whole: boolean][] = [
  ["usd_per_day", "Budget a day", "US dollars", false],
  ["usd_per_month", "Budget a month", "US dollars", false],
  ["usd_total", "Budget in total", "US dollars", false],
  ["requests_per_minute", "Requests a minute", "", true],
  ["tokens_per_minute", "Tokens a minute", "", true],
  ["parallel", "Requests at once", "", true],
];

/** "$5 / day · 60 requests / min". */
export function limitsInWords(limits: KeyLimits): string {
  const found: string[] = [];
  const money = (value: number) => `$${value}`;
  if (limits.usd_per_day != null) found.push(`${money(limits.usd_per_day)} / day`);
  if (limits.usd_per_month != null) found.push(`${money(limits.usd_per_month)} / month`);
  if (limits.usd_total != null) found.push(`${money(limits.usd_total)} in total`);
  if (limits.requests_per_minute != null) found.push(`${limits.requests_per_minute} requests / min`);
  if (limits.tokens_per_minute != null) found.push(`${limits.tokens_per_minute} tokens / min`);
  if (limits.parallel != null) found.push(`${limits.parallel} at once`);
  return found.join(" · ");
}
