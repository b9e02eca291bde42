/** One message: its parts, and what can be done with it. */
import { memo, useEffect, useRef, useState } from "react";
import { Link } from "wouter";
import { apiUrl } from "../../api/client";
import { Button, Icon, Money, Tokens, bytes, copyText, duration, spell, withCode } from "../../components";
import { Markdown } from "./markdown";
import { isFile, isText, isTool, toolName, type FilePart, type Message, type OtherPart, type Part, type TextPart } from "./messages";
import { Question, ToolCall, type Approval } from "./tool_call";

export interface MessageActions {
  /** Throws what the edit is refused with. */
  edit: (messageId: string, text: string) => Promise<void>;
  regenerate: (messageId: string) => void;
  fork: (messageId: string) => void;
  switchTo: (messageId: string) => void;
}

interface MessageViewProps {
  message: Message;
  isLive: boolean;
  isBusy: boolean;
  runId: string | undefined;
  /** Why its run failed. */
  error: string | undefined;
  approvals: Map<string, Approval>;
  actions: MessageActions;
}

export const MessageView = memo(function MessageView(props: MessageViewProps) {
  return props.message.role === "user" ? <UserMessage {...props} /> : <AssistantMessage {...props} />;
}, isSame);

/** Approvals concern a message only while it waits for one. */
function isSame(before: MessageViewProps, now: MessageViewProps): boolean {
  const waits = now.message.parts.some((part) => isTool(part) && part.state === "approval-requested") || now.message.parts.some(isOpenQuestion);
  return (
    before.message === now.message &&
    before.isLive === now.isLive &&
    before.isBusy === now.isBusy &&
    before.runId === now.runId &&
    before.error === now.error &&
    before.actions === now.actions &&
    (!waits || before.approvals === now.approvals)
  );
}

export function isOpenQuestion(part: Part): boolean {
  return part.type === "data-question" && (part as OtherPart).data?.["status"] === "pending";
}

function UserMessage({ message, isBusy, actions }: MessageViewProps) {
  const [editing, setEditing] = useState(false);
  const [draft, setDraft] = useState<string | null>(null);
  const [cancelled, setCancelled] = useState(false);
  const text = textOf(message);
  const files = message.parts.filter(isFile);
  const save = (changed: string) => {
    setEditing(false);
    setDraft(changed);
    // What was not accepted is not lost.
    actions.edit(message.id, changed).then(
      () => setDraft(null),
      () => setEditing(true),
    );
  };
  const cancel = () => {
    setDraft(null);
    setCancelled(true);
    setEditing(false);
  };
  if (editing) {
    return (
      <div data-message={message.id}>
        <Editor text={draft ?? text} onCancel={cancel} onSave={save} />
      </div>
    );
  }
  return (
    <article className="chat-user" aria-label="You" data-message={message.id} tabIndex={-1}>
      <div className="chat-bubble">
        {files.length > 0 && <Files files={files} />}
        {text !== "" && <p>{text}</p>}
      </div>
      <div className="chat-tools">
        <Siblings message={message} disabled={isBusy} onSwitch={actions.switchTo} />
        <Button look="quiet" icon="pen" aria-label="Edit" title="Edit" autoFocus={cancelled} disabled={isBusy} onClick={() => setEditing(true)} />
        <Button look="quiet" icon="copy" aria-label="Copy" title="Copy" onClick={() => void copyText(text)} />
      </div>
    </article>
  );
}

function Editor({ text, onCancel, onSave }: { text: string; onCancel: () => void; onSave: (text: string) => void }) {
  const [changed, setChanged] = useState(text);
  return (
    <form
      className="chat-editor"
      onSubmit={(event) => {
        event.preventDefault();
        if (changed.trim() !== "") onSave(changed);
      }}
    >
      <textarea
        className="textarea"
        aria-label="Message"
        autoFocus
        rows={Math.min(12, changed.split("\n").length + 1)}
        value={changed}
        onChange={(event) => setChanged(event.target.value)}
        onKeyDown={(event) => {
          if (event.key === "Escape") onCancel();
          if (event.key === "Enter" && !event.shiftKey && !event.nativeEvent.isComposing) event.currentTarget.form?.requestSubmit();
          else return;
          event.preventDefault();
        }}
      />
      <div className="chat-editor-actions">
        <span className="muted small">The earlier version stays in a branch.</span>
        <Button onClick={onCancel}>Cancel</Button>
        <Button look="primary" type="submit" disabled={changed.trim() === ""}>
          Send
        </Button>
      </div>
    </form>
  );
}

function AssistantMessage({ message, isLive, isBusy, runId, error, approvals, actions }: MessageViewProps) {
  const questions = new Set(message.parts.filter((part) => part.type === "data-question").map((part) => (part as OtherPart).data?.["toolCallId"]));
  const open = new Set(message.parts.filter(isOpenQuestion).map((part) => (part as OtherPart).data?.["toolCallId"]));
  const failure = message.metadata?.error ?? error;
  const sources = message.parts.filter((part) => part.type === "source-url") as OtherPart[];
  return (
    <article className="chat-assistant" aria-label="Answer" aria-busy={isLive} data-message={message.id} tabIndex={-1}>
      {message.parts.map((part, index) => {
        if (isTool(part)) {
          // The question below says what the call asks.
          if (toolName(part) === "user_question" && questions.has(part.toolCallId)) return null;
          const approval = part.approval === undefined ? undefined : approvals.get(part.approval.id);
          return <ToolCall key={part.toolCallId} part={part} isLive={isLive} isAsking={open.has(part.toolCallId)} approval={approval} />;
        }
        if (part.type === "data-question") return <Question key={index} part={part as OtherPart} approval={approvals.get(String((part as OtherPart).id))} />;
        if (part.type === "reasoning") return <Reasoning key={index} part={part as TextPart} isLive={isLive} />;
        if (isText(part)) return <Markdown key={index} text={part.text} />;
        if (isFile(part)) return <Files key={index} files={[part]} />;
        return null;
      })}
      {sources.length > 0 && <Sources sources={sources} />}
      {isLive && <Working message={message} />}
      {!isLive && failure !== undefined && (
        <p className="chat-answer-error">
          <Icon name="warn" size={14} />
          <span dir="auto">{withCode(failure)}</span>
        </p>
      )}
      {!isLive && <Footer message={message} isBusy={isBusy} runId={runId} actions={actions} />}
    </article>
  );
}

/** Folded; while it streams, its last line shows that the model thinks. */
function Reasoning({ part, isLive }: { part: TextPart; isLive: boolean }) {
  const isThinking = isLive && part.state === "streaming";
  const last = part.text.trim().split("\n").at(-1) ?? "";
  if (part.text.trim() === "" && !isThinking) return null;
  return (
    <details className="chat-think">
      <summary>
        <Icon name="brain" size={13} /> {isThinking ? "Thinking" : "Thought"}
        <span className="chat-think-last">{isThinking ? last.slice(-120) : ""}</span>
      </summary>
      <div className="chat-think-text">{part.text}</div>
    </details>
  );
}

function Working({ message }: { message: Message }) {
  const last = message.parts.at(-1);
  const shows = last !== undefined && (isTool(last) || (isText(last) && last.text !== ""));
  return (
    <div className="chat-working" role="status">
      <span className="chat-dot" />
      <span className={shows ? "visually-hidden" : "muted small"}>{shows ? "Working" : "Waiting for the model"}</span>
    </div>
  );
}

function Footer({ message, isBusy, runId, actions }: Pick<MessageViewProps, "message" | "isBusy" | "runId" | "actions">) {
  const { metadata } = message;
  const ended = metadata?.finishReason;
  return (
    <footer className="chat-meta">
      {metadata?.steps !== undefined && (
        <span>
          {metadata.steps} {metadata.steps === 1 ? "step" : "steps"}
        </span>
      )}
      {metadata?.usage !== undefined && <Tokens input={metadata.usage.inputTokens} output={metadata.usage.outputTokens} />}
      {metadata?.cost != null && <Money value={metadata.cost} />}
      {metadata?.duration != null && <span className="num">{duration(metadata.duration)}</span>}
      {ended !== undefined && ENDINGS[ended] !== undefined && <span className={ended === "error" ? "chat-ending chat-failed" : "chat-ending"}>{ENDINGS[ended]}</span>}
      {runId !== undefined && <Link href={`/runs/${runId}`}>Open run</Link>}
      <span className="chat-tools">
        <Siblings message={message} disabled={isBusy} onSwitch={actions.switchTo} />
        <Button look="quiet" icon="copy" aria-label="Copy answer" title="Copy answer" onClick={() => void copyText(textOf(message))} />
        <Button look="quiet" icon="again" aria-label="Regenerate" title="Regenerate" disabled={isBusy} onClick={() => actions.regenerate(message.id)} />
        <Button look="quiet" icon="fork" aria-label="Fork from here" title="Fork from here" disabled={isBusy} onClick={() => actions.fork(message.id)} />
      </span>
    </footer>
  );
}

const ENDINGS: Record<string, string> = {
  length: "cut off at the limit of tokens",
  "content-filter": "stopped by the provider's filter",
  "max-steps": "stopped at the limit of steps",
  aborted: "stopped",
  error: "failed",
};

/** The version that was just switched to, which takes the focus from the one before. */
let switched: { id: string; step: number } | null = null;

/** The versions of a message: an edit or another answer is beside the earlier one. */
function Siblings({ message, disabled, onSwitch }: { message: Message; disabled: boolean; onSwitch: (id: string) => void }) {
  const siblings = message.metadata?.siblings;
  const buttons = useRef<HTMLSpanElement>(null);
  useEffect(() => {
    if (disabled || switched?.id !== message.id) return;
    const [earlier, later] = buttons.current?.querySelectorAll("button") ?? [];
    const [wanted, other] = switched.step < 0 ? [earlier, later] : [later, earlier];
    switched = null;
    (wanted?.disabled === true ? other : wanted)?.focus({ preventScroll: true });
  }, [message.id, disabled]);
  if (siblings === undefined || siblings.ids.length < 2) return null;
  const { ids, index } = siblings;
  const to = (step: number) => {
    const id = ids[index + step];
    if (id === undefined) return;
    switched = { id, step };
    onSwitch(id);
  };
  return (
    <span className="chat-siblings" ref={buttons}>
      <Button look="quiet" icon="left" aria-label="Earlier version" disabled={disabled || index === 0} onClick={() => to(-1)} />
      <span className="num">
        {index + 1} / {ids.length}
      </span>
      <Button look="quiet" icon="right" aria-label="Later version" disabled={disabled || index === ids.length - 1} onClick={() => to(1)} />
    </span>
  );
}

function Sources({ sources }: { sources: OtherPart[] }) {
  return (
    <ul className="chat-sources" aria-label="Sources">
      {sources.map((source, index) => (
        <li key={index}>
          <a href={String(source["url"])} target="_blank" rel="noopener noreferrer">
            {String(source["title"] ?? source["url"])}
          </a>
        </li>
      ))}
    </ul>
  );
}

const SHOWN_IMAGE = /^data:image\/(png|jpeg|gif|webp);base64,/;

export function Files({ files, onRemove }: { files: FilePart[]; onRemove?: (file: FilePart) => void }) {
  return (
    <div className="chat-files">
      {files.map((file, index) => (
        <FileView key={index} file={file} onRemove={onRemove === undefined ? undefined : () => onRemove(file)} />
      ))}
    </div>
  );
}

function FileView({ file, onRemove }: { file: FilePart; onRemove?: () => void }) {
  const name = spell(file.filename ?? file.mediaType); // a sign that turns the direction could hide an ending
  const isImage = SHOWN_IMAGE.test(file.url);
  const url = file.url.startsWith("/api/") ? apiUrl(file.url) : file.url;
  const padding = file.url.startsWith("data:") ? file.url.length - file.url.replace(/=+$/, "").length : null;
  const size = padding === null ? "" : ` · ${bytes(Math.max(0, Math.floor((file.url.length - padding - file.url.indexOf(",") - 1) * 0.75)))}`;
  return (
    <span className="chat-file">
      {isImage ? (
        <img src={file.url} alt={name} title={name} />
      ) : (
        <a href={url} download={name} className="btn">
          <Icon name="file" size={14} />
          <span className="chat-file-name" title={name}>
            {name}
          </span>
          <span className="muted">{size}</span>
        </a>
      )}
      {onRemove !== undefined && <Button look="quiet" icon="x" aria-label={`Remove ${name}`} onClick={onRemove} />}
    </span>
  );
}

export function textOf(message: Message): string {
  return message.parts
    .filter((part): part is TextPart => part.type === "text")
    .map((part) => part.text)
    .join("\n\n");
}
