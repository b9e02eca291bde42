/** State is icon + word + tint, never colour alone; a kind is a small word in its colour. */
import { Icon, type IconName } from "./icons";

export type Tone = "ok" | "run" | "wait" | "bad" | "muted";

export function Chip({ tone, icon, children }: { tone: Tone; icon?: IconName; children: React.ReactNode }) {
  return (
    <span className={`chip tone-${tone}`}>
      {icon !== undefined && <Icon name={icon} size={12} />}
      {children}
    </span>
  );
}

interface Look {
  tone: Tone;
  icon: IconName;
  word: string;
}

/** Every status that the hub has for runs, calls, approvals, tasks and providers. */
const LOOKS: Record<string, Look> = {
  running: { tone: "run", icon: "play", word: "running" },
  pending: { tone: "wait", icon: "wait", word: "waiting" },
  queued: { tone: "muted", icon: "wait", word: "queued" },
  waiting: { tone: "wait", icon: "wait", word: "waiting" },
  finished: { tone: "ok", icon: "check", word: "done" },
  done: { tone: "ok", icon: "check", word: "done" },
  completed: { tone: "ok", icon: "check", word: "done" },
  ok: { tone: "ok", icon: "check", word: "ok" },
  success: { tone: "ok", icon: "check", word: "done" },
  succeeded: { tone: "ok", icon: "check", word: "done" },
  approved: { tone: "ok", icon: "check", word: "approved" },
  answered: { tone: "ok", icon: "check", word: "answered" },
  up: { tone: "ok", icon: "check", word: "up" },
  connected: { tone: "ok", icon: "check", word: "connected" },
  failed: { tone: "bad", icon: "x", word: "failed" },
  error: { tone: "bad", icon: "x", word: "failed" },
  timeout: { tone: "bad", icon: "x", word: "timeout" },
  failed_verification: { tone: "bad", icon: "x", word: "failed verification" },
  denied: { tone: "bad", icon: "x", word: "denied" },
  uncertain: { tone: "bad", icon: "help", word: "uncertain" },
  revoked: { tone: "bad", icon: "x", word: "revoked" },
  stopped: { tone: "muted", icon: "stop", word: "stopped" },
  aborted: { tone: "muted", icon: "stop", word: "aborted" },
  cancelled: { tone: "muted", icon: "stop", word: "cancelled" },
  interrupted: { tone: "wait", icon: "warn", word: "interrupted" },
  expired: { tone: "muted", icon: "wait", word: "expired" },
  "cooling-down": { tone: "wait", icon: "wait", word: "cooling down" },
};

/** A status of the hub. An unknown one is shown as it is. */
export function Status({ status, word }: { status: string; word?: string }) {
  const look = LOOKS[status] ?? { tone: "muted" as const, icon: "dots" as const, word: status };
  return (
    <Chip tone={look.tone} icon={look.icon}>
      {word ?? look.word}
    </Chip>
  );
}

export type KindName = "model" | "tool" | "op" | "muted";

/** A kind of call, or the effect of an operation, in the colour of its kind. */
export function Kind({ kind, children }: { kind: KindName; children: React.ReactNode }) {
  return <span className={`kind kind-${kind}`}>{children}</span>;
}
