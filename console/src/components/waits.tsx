/** What a run or a session waits for after its answer has stopped. */
import { Link } from "wouter";
import { spell, spellTurns } from "./spell";

export interface Wait {
  kind: "approval" | "question" | "tool" | "task";
  /** Of the approval, the question or the task; null for a tool of the client. */
  id: string | null;
  /** The operations to approve, the text of the question, or the team of the task. */
  name: string | null;
}

const SEVERAL: Record<Wait["kind"], string> = { approval: "approvals", question: "answers", tool: "tools of the app", task: "tasks" };
const MAX_QUESTION = 80; // characters

/** `for approval of shop.refund`, `for an answer to “Which one?”`, `for 2 tasks`. */
export function waitText(waits: Wait[]): string {
  const kinds = [...new Set(waits.map((each) => each.kind))];
  return `for ${kinds.map((kind) => kindText(waits.filter((each) => each.kind === kind))).join(" and ")}`;
}

function kindText(waits: Wait[]): string {
  const { kind, name } = waits[0]!;
  if (waits.length > 1) return `${waits.length} ${SEVERAL[kind]}`;
  switch (kind) {
    case "approval":
      return `approval of ${spellTurns(name)}`;
    case "question":
      return `an answer to “${shorten(spell(name ?? ""))}”`;
    case "tool":
      return "a tool that the app runs";
    case "task":
      return `the task of the team ${spellTurns(name)}`;
  }
}

function shorten(text: string): string {
  return text.length > MAX_QUESTION ? `${text.slice(0, MAX_QUESTION)}…` : text;
}

/** Whether a person has to answer. */
export function waitsForPerson(waits: Wait[]): boolean {
  return waits.some(({ kind }) => kind === "approval" || kind === "question");
}

/** A line that says what is waited for, and leads to where that ends; `isAnsweredHere`: the screen itself has the request. */
export function WaitLine({ waits, isAnsweredHere = false }: { waits: Wait[]; isAnsweredHere?: boolean }) {
  const task = waits.find((each) => each.kind === "task");
  return (
    <p className="wait-line" role="status">
      <span>
        Waits {waitText(waits)}.{" "}
        {waitsForPerson(waits) && !isAnsweredHere && <Link href="/inbox">Answer in the inbox</Link>}
        {!waitsForPerson(waits) && task?.id != null && <Link href={`/teams?tab=tasks&task=${encodeURIComponent(task.id)}`}>Open the task</Link>}
      </span>
    </p>
  );
}
