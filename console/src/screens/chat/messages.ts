/** Messages as the hub stores them, and the UI message stream that makes them. */

export interface ToolPart {
  type: `tool-${string}` | "dynamic-tool";
  toolName?: string;
  toolCallId: string;
  state: string;
  title?: string;
  input?: unknown;
  output?: unknown;
  errorText?: string;
  preliminary?: boolean;
  approval?: { id: string; approved?: boolean; reason?: string };
  callProviderMetadata?: { dragoman?: { calls?: PlannedCall[] } };
  /** The arguments as far as they have come, while they stream. */
  inputText?: string;
}

/** A call of an operation that a tool call makes. */
export interface PlannedCall {
  operation: string;
  effect?: string;
  input?: unknown;
}

export interface TextPart {
  type: "text" | "reasoning";
  text: string;
  state?: "streaming" | "done";
}

export interface FilePart {
  type: "file";
  url: string;
  mediaType: string;
  filename?: string;
}

export interface OtherPart {
  type: string;
  id?: string;
  data?: Record<string, unknown>;
  [field: string]: unknown;
}

export type Part = TextPart | ToolPart | FilePart | OtherPart;

export interface Metadata {
  model?: string;
  servedModel?: string;
  agent?: string;
  finishReason?: string;
  usage?: { inputTokens?: number; outputTokens?: number };
  cost?: number;
  steps?: number;
  duration?: number;
  error?: string;
  siblings?: { ids: string[]; index: number };
}

export interface Message {
  id: string;
  role: "user" | "assistant" | "system";
  parts: Part[];
  metadata?: Metadata;
}

export const isText = (part: Part): part is TextPart => part.type === "text" || part.type === "reasoning";
export const isTool = (part: Part): part is ToolPart => part.type.startsWith("tool-") || part.type === "dynamic-tool";
export const isFile = (part: Part): part is FilePart => part.type === "file";
export const toolName = (part: ToolPart) => part.toolName ?? part.type.slice("tool-".length);

/** A frame of the stream; its fields depend on its type. */
export interface Chunk {
  type: string;
  id?: string;
  delta?: string;
  toolCallId?: string;
  toolName?: string;
  messageId?: string;
  messageMetadata?: Metadata;
  [field: string]: unknown;
}

/**
 * Folds the frames of one answer into a message. Deltas are collected, and `flush` puts them into new objects: what
 * did not change stays the same object, so that only what changed is rendered again.
 */
export class MessageDecoder {
  private parts: Part[] = [];
  private readonly open = new Map<string, number>();
  private readonly tools = new Map<string, number>();
  private readonly deltas = new Map<number, string>();
  private metadata: Metadata = {};
  private stepStart = 0;
  private changed = false;
  id = "";
  error: string | null = null;
  finished = false;
  /** Transient parts, which belong to no message; taken by the caller. */
  transient: OtherPart[] = [];

  apply(chunk: Chunk): void {
    this.changed = true;
    const handler = this.handlers[chunk.type];
    if (handler !== undefined) handler(chunk);
    else if (chunk.type.startsWith("data-")) this.data(chunk);
  }

  /** The message as it is now; null before it has begun, or when nothing has changed since. */
  flush(): Message | null {
    if (!this.changed || this.id === "") return null;
    this.changed = false;
    for (const [at, delta] of this.deltas) {
      const part = this.parts[at];
      if (part === undefined) continue;
      if (isText(part)) this.parts[at] = { ...part, text: part.text + delta };
      else if (isTool(part)) this.parts[at] = { ...part, inputText: (part.inputText ?? "") + delta };
    }
    this.deltas.clear();
    return { id: this.id, role: "assistant", parts: [...this.parts], metadata: this.metadata };
  }

  private readonly handlers: Record<string, (chunk: Chunk) => void> = {
    start: (chunk) => {
      this.id = chunk.messageId ?? this.id;
      this.merge(chunk);
    },
    "start-step": () => {
      this.stepStart = this.parts.length;
      this.parts.push({ type: "step-start" });
    },
    "reset-step": () => {
      this.flush();
      this.parts.length = this.stepStart;
      this.changed = true;
    },
    "text-start": (chunk) => this.begin(chunk, "text"),
    "reasoning-start": (chunk) => this.begin(chunk, "reasoning"),
    "text-delta": (chunk) => this.add(this.open.get(`text:${chunk.id}`), chunk.delta),
    "reasoning-delta": (chunk) => this.add(this.open.get(`reasoning:${chunk.id}`), chunk.delta),
    "text-end": (chunk) => this.end(`text:${chunk.id}`),
    "reasoning-end": (chunk) => this.end(`reasoning:${chunk.id}`),
    "tool-input-start": (chunk) => this.tool(chunk, { state: "input-streaming" }),
    "tool-input-delta": (chunk) => this.add(this.tools.get(chunk.toolCallId ?? ""), chunk["inputTextDelta"] as string),
    "tool-input-available": (chunk) =>
      this.tool(chunk, {
        state: "input-available",
        input: chunk["input"],
        inputText: undefined,
        ...(chunk["title"] === undefined ? {} : { title: chunk["title"] as string }),
        ...(chunk["providerMetadata"] === undefined
          ? {}
          : { callProviderMetadata: chunk["providerMetadata"] as ToolPart["callProviderMetadata"] }),
      }),
    "tool-input-error": (chunk) =>
      this.tool(chunk, { state: "output-error", input: chunk["input"], errorText: chunk["errorText"] as string }),
    "tool-approval-request": (chunk) =>
      this.tool(chunk, { state: "approval-requested", approval: { id: chunk["approvalId"] as string } }),
    "tool-approval-response": (chunk) => this.approved(chunk),
    "tool-output-available": (chunk) =>
      this.tool(chunk, {
        state: "output-available",
        output: chunk["output"],
        preliminary: chunk["preliminary"] === true,
      }),
    "tool-output-error": (chunk) => this.tool(chunk, { state: "output-error", errorText: chunk["errorText"] as string }),
    "tool-output-denied": (chunk) => this.tool(chunk, { state: "output-denied" }),
    file: (chunk) => void this.parts.push({ ...chunk }),
    "source-url": (chunk) => void this.parts.push({ ...chunk }),
    "source-document": (chunk) => void this.parts.push({ ...chunk }),
    "message-metadata": (chunk) => this.merge(chunk),
    error: (chunk) => {
      this.error = String(chunk["errorText"]);
    },
    abort: () => {
      this.finished = true;
    },
    finish: (chunk) => {
      this.merge(chunk);
      this.finished = true;
    },
  };

  private merge(chunk: Chunk): void {
    if (chunk.messageMetadata !== undefined) this.metadata = { ...this.metadata, ...chunk.messageMetadata };
  }

  private begin(chunk: Chunk, type: "text" | "reasoning"): void {
    this.open.set(`${type}:${chunk.id}`, this.parts.length);
    this.parts.push({ type, text: "", state: "streaming" });
  }

  private add(at: number | undefined, delta: string | undefined): void {
    if (at !== undefined && delta !== undefined) this.deltas.set(at, (this.deltas.get(at) ?? "") + delta);
  }

  private end(key: string): void {
    const at = this.open.get(key);
    const part = at === undefined ? undefined : this.parts[at];
    if (at === undefined || part === undefined || !isText(part)) return;
    const delta = this.deltas.get(at) ?? "";
    this.deltas.delete(at);
    this.parts[at] = { ...part, text: part.text + delta, state: "done" };
    this.open.delete(key);
  }

  private tool(chunk: Chunk, changes: Partial<ToolPart>): void {
    const id = chunk.toolCallId ?? "";
    const at = this.tools.get(id);
    const known = at === undefined ? undefined : (this.parts[at] as ToolPart | undefined);
    if (at !== undefined && known !== undefined) {
      this.parts[at] = { ...known, ...changes };
      return;
    }
    this.tools.set(id, this.parts.length);
    this.parts.push({ type: `tool-${chunk.toolName ?? "call"}`, toolCallId: id, state: "input-streaming", ...changes });
  }

  private approved(chunk: Chunk): void {
    for (const [id, at] of this.tools) {
      const part = this.parts[at] as ToolPart;
      if (part.approval?.id !== chunk["approvalId"]) continue;
      const approval = { ...part.approval, approved: chunk["approved"] === true, reason: chunk["reason"] as string };
      this.tool({ type: "", toolCallId: id }, { state: "approval-responded", approval: approval as ToolPart["approval"] });
    }
  }

  private data(chunk: Chunk): void {
    const part = { ...chunk } as OtherPart;
    if (chunk["transient"] === true) {
      this.transient.push(part);
      return;
    }
    const at = this.parts.findIndex((each) => each.type === part.type && part.id !== undefined && (each as OtherPart).id === part.id);
    if (at >= 0) this.parts[at] = part;
    else this.parts.push(part);
  }
}
