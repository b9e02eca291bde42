/** Calls of tools: folded, with their state, progress and result; and what a person has to decide about them. */
import { useQuery } from "@tanstack/react-query";
import { memo, useState, type FormEvent } from "react";
import { api, apiUrl } from "../../api/client";
import { useSession } from "../../api/session";
import { Button, Chip, Dialog, Expiry, Icon, JsonView, Kind, Status, spell, toastError, useIsPast } from "../../components";
import { toolName, type OtherPart, type PlannedCall, type ToolPart } from "./messages";

export interface Approval {
  id: string;
  status: string;
  operation: string;
  operations: string[];
  items: { operation: string; input: unknown; reason: string | null; agent: string | null }[];
  createdAt: number;
  expiresAt: number | null;
  answerers: string[];
  mayAnswer: boolean;
  agent: string | null;
  runId: string | null;
  sessionId: string | null;
  toolCallId: string | null;
}

/** The approvals and questions of a session, by their ids; read when a message waits for one. */
export function useApprovals(sessionId: string, enabled: boolean): Map<string, Approval> {
  const { data } = useQuery({
    queryKey: ["approvals", "session", sessionId],
    queryFn: () => api.get<{ approvals: Approval[] }>("/api/approvals", { query: { session: sessionId, status: "pending" } }),
    enabled,
  });
  return new Map((data?.approvals ?? []).map((approval) => [approval.id, approval]));
}

/** What a call does, in the operations of the hub: `hub_call` is a batch of them. */
function plannedCalls(part: ToolPart): PlannedCall[] {
  const calls = part.callProviderMetadata?.dragoman?.calls;
  if (calls !== undefined && calls.length > 0) return calls;
  const batch = (part.input as { calls?: { tool?: string; input?: unknown }[] } | undefined)?.calls;
  if (toolName(part) === "hub_call" && Array.isArray(batch)) {
    return batch.map((call) => ({ operation: call.tool ?? "?", input: call.input }));
  }
  return [{ operation: part.title ?? toolName(part).replace("_", "."), input: part.input }];
}

/** The arguments in a few words: `id=4411 name=ann`. */
function summary(input: unknown): string {
  if (input === null || typeof input !== "object" || Array.isArray(input)) return "";
  const words = Object.entries(input).map(([name, value]) => {
    const text = typeof value === "string" ? value : JSON.stringify(value);
    return `${name}=${text.length > 40 ? `${text.slice(0, 40)}…` : text}`;
  });
  return spell(words.join(" "));
}

function stateOf(part: ToolPart, isLive: boolean): { status: string; word?: string } {
  if (part.approval?.approved === false) return { status: "denied" };
  switch (part.state) {
    case "output-available":
      return part.preliminary === true ? { status: "running" } : resultState(part.output);
    case "output-error":
      return { status: "failed" };
    case "output-denied":
      return { status: "denied" };
    case "approval-requested":
      return { status: "waiting", word: "needs approval" };
    default:
      return isLive ? { status: "running", word: part.state === "input-streaming" ? "preparing" : "running" } : { status: "interrupted" };
  }
}

/** A batch is done when every call of it is. */
function resultState(output: unknown): { status: string; word?: string } {
  if (!Array.isArray(output)) return { status: "done" };
  const failed = output.filter((each) => (each as { success?: boolean } | null)?.success === false).length;
  if (failed === 0) return { status: "done" };
  return { status: "failed", word: output.length === 1 ? "failed" : `${failed} of ${output.length} failed` };
}

interface Rule {
  /** As it is written in the policy. */
  source: string;
  reason: string | null;
}

/** The rule that asks. */
function useRule(operation: string | undefined, input: unknown, agent: string | null | undefined): Rule | undefined {
  const session = useSession();
  const { data } = useQuery({
    queryKey: ["policy", operation, agent, input],
    queryFn: () => api.post<Rule>("/api/policy/explain", { operation, agent: agent ?? undefined }),
    enabled: operation !== undefined && session.can("operations"),
    staleTime: Infinity,
    retry: false,
  });
  return data;
}

interface ToolCallProps {
  part: ToolPart;
  isLive: boolean;
  /** Whether it waits for the answer to a question. */
  isAsking: boolean;
  approval?: Approval;
}

export const ToolCall = memo(function ToolCall({ part, isLive, isAsking, approval }: ToolCallProps) {
  const calls = plannedCalls(part);
  const first = calls[0];
  const state = isAsking ? { status: "waiting" } : stateOf(part, isLive);
  const asks = part.state === "approval-requested" && part.approval?.approved === undefined;
  const title = part.title ?? first?.operation ?? toolName(part);
  const head = (
    <>
      {first?.effect !== undefined && <Kind kind={first.effect === "read" ? "tool" : "op"}>{first.effect}</Kind>}
      <b className="mono">{title}</b>
      <span className="chat-call-args mono">{!asks && calls.length === 1 ? summary(first?.input) : ""}</span>
      <span className="chat-call-right">
        <Status {...state} />
        {asks && approval?.expiresAt != null && (
          <span className="muted small">
            <Expiry at={approval.expiresAt} />
          </span>
        )}
      </span>
    </>
  );
  if (asks) {
    return (
      <section className="chat-call chat-call-ask" aria-label={`${title} needs approval`}>
        <div className="chat-call-head">{head}</div>
        <ApprovalForm calls={calls} id={part.approval?.id ?? ""} approval={approval} />
      </section>
    );
  }
  return (
    <div className="chat-call">
      <details>
        <summary className="chat-call-head">
          <Icon name="right" size={12} />
          {head}
        </summary>
        <div className="chat-call-body">
          {part.state === "input-streaming" ? (
            <pre className="chat-call-raw">{part.inputText ?? ""}</pre>
          ) : (
            calls.map((call, index) => (
              <section key={index}>
                <h4>{calls.length > 1 ? `${call.operation}: input` : "Input"}</h4>
                <JsonView value={call.input ?? part.input} label="input" isSpelt />
              </section>
            ))
          )}
          <Result part={part} />
        </div>
      </details>
      {part.preliminary === true && <Progress output={part.output} />}
      <Media output={part.output} />
      {part.errorText !== undefined && <p className="chat-call-error">{part.errorText}</p>}
    </div>
  );
});

function Result({ part }: { part: ToolPart }) {
  if (part.output === undefined) return null;
  return (
    <section>
      <h4>{part.preliminary === true ? "So far" : "Result"}</h4>
      <JsonView value={part.output} label="result" />
    </section>
  );
}

/** The last line of what a running call has said. */
function Progress({ output }: { output: unknown }) {
  const found = Array.isArray(output) ? output[output.length - 1] : output;
  const value = found as { progress?: number; total?: number; message?: string; text?: string } | string | null;
  const text = typeof value === "string" ? value : (value?.message ?? value?.text ?? JSON.stringify(value) ?? "");
  const done = typeof value === "object" && value !== null && typeof value.progress === "number" ? value.progress : null;
  const total = typeof value === "object" && value !== null && typeof value.total === "number" ? value.total : null;
  return (
    <div className="chat-progress">
      {done !== null && total !== null && <progress value={done} max={total} aria-label="progress" />}
      <span className="mono">{text.slice(-300)}</span>
    </div>
  );
}

const ARTIFACT = /"(art_[\w-]+)"/g;

interface Block {
  type?: string;
  data?: string;
  mimeType?: string;
}

/** Images in a result, and the artifacts that it names. */
function Media({ output }: { output: unknown }) {
  if (output === undefined || output === null || typeof output !== "object") return null;
  const images = findBlocks(output).filter((block) => block.type === "image" && /^image\/(png|jpeg|gif|webp)$/.test(block.mimeType ?? ""));
  const artifacts = [...new Set([...JSON.stringify(output).matchAll(ARTIFACT)].map((match) => match[1] ?? ""))];
  if (images.length === 0 && artifacts.length === 0) return null;
  return (
    <div className="chat-media">
      {images.map((block, index) => (
        <img key={index} src={`data:${block.mimeType};base64,${block.data}`} alt={`Image ${index + 1} of the result`} />
      ))}
      {artifacts.map((id) => (
        <a key={id} className="btn" href={apiUrl(`/api/artifacts/${id}/content`)} download>
          <Icon name="file" size={14} /> {id.slice(0, 12)}…
        </a>
      ))}
    </div>
  );
}

const MAX_DEPTH = 6;

function findBlocks(value: unknown, depth = 0): Block[] {
  if (value === null || typeof value !== "object" || depth > MAX_DEPTH) return [];
  if ("mimeType" in value && "data" in value) return [value as Block];
  return Object.values(value).flatMap((each) => findBlocks(each, depth + 1));
}

/** What exactly will run, the rule that asked, and the answer. */
function ApprovalForm({ calls, id, approval }: { calls: PlannedCall[]; id: string; approval?: Approval }) {
  const [busy, setBusy] = useState(false);
  const [denying, setDenying] = useState(false);
  const [reason, setReason] = useState("");
  const isOver = useIsPast(approval?.expiresAt);
  const mayAnswer = approval?.mayAnswer !== false && !isOver;
  const answer = async (approved: boolean) => {
    setBusy(true);
    try {
      await api.post(`/api/approvals/${id}`, { approved, ...(approved || reason === "" ? {} : { reason }) });
      setDenying(false);
    } catch (error) {
      toastError(error);
      setBusy(false);
    }
  };
  const items = approval?.items ?? calls.map((call) => ({ ...call, reason: null, agent: null }));
  // The inputs that were shown whole, by their places: those of the message, until the approval has been read.
  const [shown, setShown] = useState<Map<number, unknown>>(new Map());
  const isRead = items.every((item, at) => shown.has(at) && shown.get(at) === item.input);
  const noteShown = (at: number, input: unknown) =>
    setShown((now) => (now.has(at) && now.get(at) === input ? now : new Map([...now, [at, input]])));
  const rule = useRule(items[0]?.operation, null, approval?.agent);
  const why = items.map((item) => item.reason).find((each) => each != null) ?? rule?.reason;
  return (
    <>
      {items.map((item, index) => (
        <div key={index} className="chat-approval-item">
          {items.length > 1 && <b className="mono">{item.operation}</b>}
          <JsonView value={item.input ?? {}} label={`input of ${item.operation}`} isSpelt isWhole onShownWhole={() => noteShown(index, item.input)} />
        </div>
      ))}
      <div className="chat-approval-actions">
        <Button look="primary" icon="check" busy={busy} disabled={!mayAnswer || !isRead} onClick={() => void answer(true)}>
          Approve
        </Button>
        <Button look="danger" disabled={busy || !mayAnswer} onClick={() => setDenying(true)}>
          Deny…
        </Button>
        <span className="chat-approval-rule">
          {isOver ? (
            "nobody answered in time"
          ) : approval?.mayAnswer === false ? (
            `${approval.answerers.join(", ")} may answer`
          ) : !isRead ? (
            "Its input is not all shown. Open all of it before you approve."
          ) : why != null ? (
            `why it is asked: ${spell(why)}`
          ) : rule !== undefined ? (
            <>
              asked by <code>{rule.source}</code>
            </>
          ) : (
            "a rule of the policy asks"
          )}
        </span>
      </div>
      <Dialog
        open={denying}
        onClose={() => setDenying(false)}
        title={`Deny ${items.map((item) => item.operation).join(", ")}`}
        actions={
          <>
            <Button onClick={() => setDenying(false)}>Cancel</Button>
            <Button look="danger" busy={busy} onClick={() => void answer(false)}>
              Deny
            </Button>
          </>
        }
      >
        <label htmlFor={`reason-${id}`}>Reason, which the model is told (optional)</label>
        <textarea id={`reason-${id}`} className="textarea" rows={3} value={reason} onChange={(event) => setReason(event.target.value)} />
      </Dialog>
    </>
  );
}

interface QuestionData {
  id: string;
  text: string;
  options?: string[];
  status: string;
  answer?: string;
  reason?: string;
}

/** A question of the model: its options, or an answer of one's own. */
export function Question({ part, approval }: { part: OtherPart; approval?: Approval }) {
  const data = part.data as unknown as QuestionData;
  const [text, setText] = useState("");
  const [busy, setBusy] = useState(false);
  const reply = async (body: Record<string, unknown>) => {
    setBusy(true);
    try {
      await api.post(`/api/approvals/${data.id}`, body);
    } catch (error) {
      toastError(error);
      setBusy(false);
    }
  };
  if (data.status !== "pending") {
    return (
      <div className="chat-question chat-question-done">
        <p>{data.text}</p>
        {data.answer !== undefined ? (
          <p className="chat-answer">{data.answer}</p>
        ) : (
          <Chip tone="muted" icon="x">
            {data.reason ?? "not answered"}
          </Chip>
        )}
      </div>
    );
  }
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (text.trim() !== "") void reply({ answer: text.trim() });
  };
  const options = data.options ?? [];
  return (
    <section className="chat-question chat-call-ask" aria-label="Question">
      <div className="chat-question-head">
        <p dir="auto">{spell(data.text)}</p>
        {approval?.expiresAt != null && (
          <span className="muted small">
            <Expiry at={approval.expiresAt} />
          </span>
        )}
      </div>
      {options.length > 0 && (
        <div className="chat-options">
          {options.map((option) => (
            <Button key={option} disabled={busy} onClick={() => void reply({ answer: option })}>
              {spell(option)}
            </Button>
          ))}
        </div>
      )}
      <form onSubmit={submit} className="chat-options">
        <input
          className="input"
          aria-label="Your answer"
          placeholder={options.length > 0 ? "Another answer" : "Your answer"}
          value={text}
          onChange={(event) => setText(event.target.value)}
        />
        <Button type="submit" disabled={busy || text.trim() === ""}>
          Answer
        </Button>
        <Button look="quiet" disabled={busy} onClick={() => void reply({ approved: false })}>
          No answer
        </Button>
      </form>
    </section>
  );
}
