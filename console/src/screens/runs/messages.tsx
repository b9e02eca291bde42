/** A run as a conversation, as what happened one after the other, and as what it was made from. */
import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { VList } from "virtua";
import { api, apiUrl } from "../../api/client";
import { Empty, ErrorNotice, JsonView, Kind, Loading, Status, count, duration } from "../../components";
import { shortInput, type CallTree } from "./tree";
import { kindOf } from "./tree_view";
import type { Root } from "./types";

interface Part {
  type: string;
  text?: string;
  toolName?: string;
  state?: string;
  input?: unknown;
  output?: unknown;
  errorText?: string;
}

interface ChatMessage {
  id: string;
  role: string;
  parts: Part[];
}

interface PromptTool {
  name: string;
  description: string;
  inputSchema: unknown;
  /** Null for a tool of the front end. */
  operation: string | null;
}

interface Prompt {
  instructions: string | null;
  hidden: string[];
  tools: PromptTool[] | null;
  messages: ChatMessage[];
}

function useMessages(root: Root) {
  return useQuery({
    queryKey: ["run-messages", root.sessionId, root.messageId, root.status],
    queryFn: ({ signal }) =>
      api.get<{ messages: ChatMessage[] }>(`/api/sessions/${encodeURIComponent(root.sessionId ?? "")}/messages`, {
        query: { owner: root.owner },
        signal,
      }),
    enabled: root.sessionId !== null,
  });
}

export function MessagesTab({ root }: { root: Root }) {
  const { data, error, isLoading, refetch } = useMessages(root);
  if (error !== null) return <Failed error={error} retry={() => void refetch()} />;
  if (isLoading) return <Loading />;
  const shown = ofRun(data?.messages ?? [], root);
  if (shown.length === 0) return <None />;
  return (
    <div className="pad runs-talk" tabIndex={0} role="region" aria-label="Messages">
      {shown.map((message) => (
        <Message key={message.id} message={message} />
      ))}
    </div>
  );
}

/** The hub does not store requests to providers: this is made anew from the agent, its tools and the conversation. */
export function PromptTab({ root }: { root: Root }) {
  const { data, error, isLoading, refetch } = useQuery({
    queryKey: ["run-prompt", root.id],
    queryFn: ({ signal }) => api.get<Prompt>(`/api/runs/${encodeURIComponent(root.id)}/prompt`, { signal }),
  });
  if (error !== null) return <Failed error={error} retry={() => void refetch()} />;
  if (isLoading || data === undefined) return <Loading />;
  const { instructions, tools, messages } = data;
  return (
    <div className="pad runs-talk" tabIndex={0} role="region" aria-label="Prompt">
      <p className="muted small">
        What the model calls of this run are made from: the agent as it is configured now, and the conversation as the session
        has it. Hooks and the limits of the context may have changed what was sent; requests to providers are not stored.
      </p>
      <section className="runs-message" aria-label="Instructions">
        <h2>instructions</h2>
        {instructions !== null && <p className="runs-text">{instructions}</p>}
        {instructions === null && (
          <p className="muted">
            {data.hidden.includes("instructions") ? "They are for administrators." : "The agent has none, or is not configured any more."}
          </p>
        )}
      </section>
      <section className="runs-message" aria-label="Tools">
        <h2>{tools === null ? "tools" : `${count(tools.length)} ${tools.length === 1 ? "tool" : "tools"}`}</h2>
        {tools === null && <p className="muted">The agent is not configured any more.</p>}
        {tools?.map((tool) => <ToolView key={tool.name} tool={tool} />)}
      </section>
      {messages.map((message) => (
        <Message key={message.id} message={message} />
      ))}
      {messages.length === 0 && <p className="muted">The messages before the answer are gone, or on another branch of the session.</p>}
    </div>
  );
}

function ToolView({ tool }: { tool: PromptTool }) {
  return (
    <details className="runs-tool">
      <summary>
        <Kind kind={tool.operation === null ? "tool" : "op"}>{tool.operation === null ? "page" : "op"}</Kind> <b className="mono">{tool.name}</b>{" "}
        <span className="muted">{firstSentence(tool.description)}</span>
      </summary>
      <p className="runs-text">{tool.description}</p>
      <JsonView value={tool.inputSchema} label="input schema" />
    </details>
  );
}

function firstSentence(text: string): string {
  return /^[^\n]*?[.](?=\s|$)/.exec(text)?.[0] ?? text.split("\n")[0] ?? "";
}

function Message({ message }: { message: ChatMessage }) {
  return (
    <section className={`runs-message runs-message-${message.role}`} aria-label={message.role}>
      <h2>{message.role}</h2>
      {message.parts.map((part, at) => (
        <PartView key={at} part={part} />
      ))}
    </section>
  );
}

function PartView({ part }: { part: Part }) {
  if (part.type === "text") return <p className="runs-text">{part.text}</p>;
  if (part.type === "reasoning") {
    return (
      <details className="runs-reasoning">
        <summary className="muted">reasoning</summary>
        <p className="runs-text muted">{part.text}</p>
      </details>
    );
  }
  if (part.type === "dynamic-tool" || part.type.startsWith("tool-")) {
    return (
      <details className="runs-tool">
        <summary>
          <Kind kind="op">op</Kind> <b className="mono">{part.toolName ?? part.type.slice(5)}</b>{" "}
          <span className="muted">{part.state}</span>
        </summary>
        <JsonView value={part.input} label="input" isSpelt />
        {part.output !== undefined && <JsonView value={part.output} label="output" />}
        {part.errorText !== undefined && <p className="runs-error">{part.errorText}</p>}
      </details>
    );
  }
  return null;
}

export function EventsTab({ tree, version, onOpen }: { tree: CallTree; version: number; onOpen: (id: string) => void }) {
  const moments = useMemo(() => tree.moments(), [tree, version]);
  const origin = tree.root.startedAt;
  return (
    <VList className="runs-events" itemSize={30} data={moments} role="list" aria-label="Events" tabIndex={0}>
      {(moment, at) => (
        <div key={at} role="listitem" className="runs-event">
          <span className="num muted">{duration(moment.at - origin)}</span>
          <Kind kind={kindOf(moment.node)}>{moment.node.kind}</Kind>
          <button type="button" className="runs-link mono" onClick={() => onOpen(moment.node.id)}>
            {moment.node.name}
          </button>
          {moment.what === "began" ? <span className="muted">began {shortInput(moment.node.detail)}</span> : <Status status={moment.node.status} />}
        </div>
      )}
    </VList>
  );
}

/** The answer of the run, and the message of the user that it answers. */
function ofRun(messages: ChatMessage[], root: Root): ChatMessage[] {
  const at = messages.findIndex((message) => message.id === root.messageId);
  if (at < 0) return [];
  const found = [messages[at]!];
  for (let before = at - 1; before >= 0; before--) {
    found.unshift(messages[before]!);
    if (messages[before]!.role === "user") break;
  }
  return found;
}

/** The request that asks the same again; the key comes from the environment, never from here. */
export async function curlOfRun(root: Root): Promise<string> {
  const path = `/api/sessions/${encodeURIComponent(root.sessionId ?? "")}/messages`;
  const { messages } = await api.get<{ messages: ChatMessage[] }>(path, { query: { owner: root.owner } });
  const asked = ofRun(messages, root).find((message) => message.role === "user");
  const question = { id: "m1", role: "user", parts: asked?.parts ?? [] };
  const body = { messages: [question], ...(root.agent === null ? { model: root.name } : { agent: root.agent }) };
  const text = JSON.stringify(body).replaceAll("'", "'\\''");
  return `curl -N -X POST '${apiUrl("/api/chat")}' \\\n  -H "Authorization: Bearer $DRAGOMAN_KEY" -H 'Content-Type: application/json' \\\n  -d '${text}'`;
}

function None() {
  return (
    <Empty icon="chat" title="There are no messages">
      <p>The session was deleted, or the answer is on another branch of it.</p>
    </Empty>
  );
}

function Failed({ error, retry }: { error: unknown; retry: () => void }) {
  return (
    <div className="pad">
      <ErrorNotice error={error} onRetry={retry} />
    </div>
  );
}
