/**
 * One session as it is shown: its messages, the answer that is being made, and what waits behind it.
 *
 * The hub is the source of truth. Messages are sent to be answered in the background, so that an answer outlives the
 * page; whatever answer is being made, of this tab or of another one, is followed by `GET …/stream`, which begins with
 * what is there already; after its end the stored messages are read once.
 */
import { hubTime } from "../../api/clock";
import { api, HubError, send } from "../../api/client";
import type { HubEvent } from "../../api/events";
import { WatchedStream } from "../../api/sse";
import { MessageDecoder, type Chunk, type FilePart, type Message, type OtherPart } from "./messages";

export interface Queued {
  runId: string;
  messageId: string;
  mode: string;
  message: Message;
}

export type WhenBusy = "steer" | "queue" | "interrupt";

export interface ChatState {
  status: "loading" | "ready" | "sending" | "streaming";
  messages: Message[];
  queued: Queued[];
  error: Error | null;
  /** What to do about the error: make the answer anew, or read the session again. */
  retry: "answer" | "read" | null;
  /** The run of each answer that this page saw; the others are looked up when asked for. */
  runs: Record<string, string>;
  /** When the answer that is being made began, for its duration. */
  startedAt: number | null;
}

export interface SendOptions {
  model?: string | null;
  agent?: string | null;
  files?: FilePart[];
  whenBusy?: WhenBusy;
}

const FRAME_MS = 50; // at most 20 writes of the hub and 20 renders a second, whatever the rate of chunks
const MAX_SHARE = 1 / 3; // of the tab's time, for rendering what grows: a large block is drawn less often
const EMPTY: ChatState = { status: "loading", messages: [], queued: [], error: null, retry: null, runs: {}, startedAt: null };
type ShownError = Pick<ChatState, "error" | "retry">;
const NO_ERROR: ShownError = { error: null, retry: null };
const RETRIES = 5;

export class ChatController {
  private watchers = new Set<() => void>();
  private stream: AbortController | null = null;
  /** Whether a run began after the stream that is being read was asked for. */
  private isBehind = false;
  private closed = false;
  private streamed = false;
  private loads = 0;
  /** How often the queue was read, and which of these answers is shown: an earlier one may come later. */
  private queueReads = 0;
  private shownQueue = 0;
  /** Whether the session could not be read, or its answer not be followed to its end. */
  private isStale = false;
  /** Runs that this page follows or has followed: their events tell nothing new. */
  private readonly followed = new Set<string>();
  state: ChatState = EMPTY;

  constructor(readonly id: string) {}

  subscribe = (watcher: () => void): (() => void) => {
    this.watchers.add(watcher);
    return () => this.watchers.delete(watcher);
  };

  snapshot = (): ChatState => this.state;

  get isBusy(): boolean {
    return this.state.status === "sending" || this.state.status === "streaming";
  }

  /** Read the stored messages, and follow an answer that is being made. */
  async open(isNew: boolean): Promise<void> {
    if (isNew) {
      this.set({ status: "ready" });
      return;
    }
    await this.load();
    if (!this.isBusy && this.state.retry !== "read" && this.hasOpenAnswer()) void this.follow();
  }

  close(): void {
    this.closed = true;
    this.stream?.abort();
  }

  /** Read what happened while the hub was away or the sign-in had ended, and follow the answer that is being made. */
  resume(): void {
    if (this.isStale && !this.isBusy && !this.closed) void this.open(false);
  }

  /**
   * Send a message. While an answer is made it waits in the hub, in the way that `whenBusy` says. Throws what the hub
   * refuses it with: the message is not among those that are shown.
   */
  async submit(text: string, options: SendOptions = {}): Promise<void> {
    const message = userMessage(newId(), text, options.files);
    const body = { id: this.id, messages: [message], model: options.model, agent: options.agent };
    if (this.isBusy) {
      await api.post("/api/chat", { ...body, whenBusy: options.whenBusy ?? "steer", background: true });
      await this.loadQueue();
      return;
    }
    const before = this.state.messages;
    this.set({ messages: [...before, message], error: null });
    await this.run(body, before);
  }

  /** Replace a message of the user, in a new branch. Throws what the hub refuses it with. */
  async edit(messageId: string, text: string, options: SendOptions = {}): Promise<void> {
    const at = this.state.messages.findIndex((each) => each.id === messageId);
    const files = this.state.messages[at]?.parts.filter((part): part is FilePart => part.type === "file");
    const message = userMessage(messageId, text, files);
    const before = this.state.messages;
    this.set({ messages: [...before.slice(0, at), message], error: null });
    await this.run({ id: this.id, messages: [message], messageId, trigger: "submit-message", ...pick(options) }, before);
  }

  /** Answer a message anew, in a new branch; without an id the last answer. Throws what the hub refuses it with. */
  async regenerate(messageId: string, options: SendOptions = {}): Promise<void> {
    const at = this.state.messages.findIndex((each) => each.id === messageId);
    const before = this.state.messages;
    const kept = at < 0 ? before : before.slice(0, at);
    this.set({ messages: kept, error: null });
    const body = { id: this.id, messages: kept.slice(-1), messageId, trigger: "regenerate-message", ...pick(options) };
    await this.run(body, before);
  }

  async stop(): Promise<void> {
    await api.post(`/api/chat/${encodeURIComponent(this.id)}/stop`);
  }

  async switchTo(messageId: string): Promise<void> {
    await api.post(`${this.path}/branch`, { messageId });
    await this.load();
  }

  async withdraw(messageId: string): Promise<void> {
    await api.delete(`${this.path}/queue/${encodeURIComponent(messageId)}`);
    await this.loadQueue();
  }

  /** Events of the session: what another tab, an approval or a queue has begun is followed. */
  onEvents(events: HubEvent[]): void {
    const own = events.filter((event) => event.name === "reset" || event.sessionId === this.id);
    if (own.length === 0 || this.closed) return;
    if (this.isBusy) {
      if (own.some((event) => event.name === "message")) void this.loadQueue().catch(() => undefined);
      return;
    }
    if (own.some((event) => event.name === "run.started" && !this.isFollowed(event))) void this.follow();
    else if (own.some((event) => this.isNews(event))) void this.open(false); // a run may have begun unseen
  }

  private isFollowed(event: HubEvent): boolean {
    return this.followed.has(String(event.data["runId"]));
  }

  /** Whether the stored messages are not what is shown. */
  private isNews(event: HubEvent): boolean {
    if (event.name === "message") return !this.state.messages.some((message) => message.id === event.data["messageId"]);
    return event.name === "reset" || (event.name === "run.ended" && !this.isFollowed(event));
  }

  /** Whether the last answer has not ended, or has not begun. */
  private hasOpenAnswer(): boolean {
    const last = this.state.messages.at(-1);
    return last !== undefined && (last.role === "user" || last.metadata?.finishReason === undefined);
  }

  private get path(): string {
    return `/api/sessions/${encodeURIComponent(this.id)}`;
  }

  /** Read the stored messages; `shown` is the error that is shown with them, without it the one that is still true. */
  private async load(shown?: ShownError): Promise<void> {
    const load = ++this.loads;
    const read = ++this.queueReads;
    try {
      const found = await api.get<{ messages: Message[]; queued?: Queued[] }>(`${this.path}/messages`);
      if (this.closed || load !== this.loads || this.isBusy) return;
      const error = shown ?? this.lastingError();
      this.isStale = false;
      this.set({ status: "ready", messages: keepSame(this.state.messages, found.messages), ...error });
      this.showQueue(read, found.queued ?? []);
    } catch (error) {
      this.isStale = true;
      if (this.closed || load !== this.loads || this.isBusy) return;
      this.set({ status: "ready", ...(shown?.error == null ? { error: error as Error, retry: "read" } : shown) });
    }
  }

  /** What was refused or has failed, which the next answer ends; not that the hub could not be read. */
  private lastingError(): ShownError {
    const { error, retry } = this.state;
    return this.isStale || retry === "read" ? NO_ERROR : { error, retry };
  }

  private async loadQueue(): Promise<void> {
    const read = ++this.queueReads;
    const { queued } = await api.get<{ queued: Queued[] }>(`${this.path}/queue`);
    if (!this.closed) this.showQueue(read, queued);
  }

  private showQueue(read: number, queued: Queued[]): void {
    if (read < this.shownQueue) return;
    this.shownQueue = read;
    this.set({ queued });
  }

  /**
   * Begin an answer and follow it. Otherwise the messages are those from before, or what the hub has, and the reason is
   * shown and thrown.
   */
  private async run(body: Record<string, unknown>, before: Message[]): Promise<void> {
    this.set({ status: "sending", startedAt: hubTime() });
    let runId: string;
    try {
      ({ runId } = await api.post<{ runId: string }>("/api/chat", { ...body, background: true }));
    } catch (error) {
      const refusal = refusalOf(error as Error);
      const shown = { error: refusal, retry: body["trigger"] === "regenerate-message" ? "answer" : null } as const;
      this.set({ status: "ready", startedAt: null, messages: before, ...shown });
      await this.load(shown);
      if (refusal !== error) void this.follow(); // another tab's answer
      throw refusal;
    }
    this.followed.add(runId);
    await this.follow(runId);
  }

  /** Follow the answer that is being made, if there is one. */
  private async follow(runId: string | null = null): Promise<void> {
    if (this.stream !== null) {
      this.isBehind = true;
      return;
    }
    const stream = (this.stream = new AbortController());
    let failure: Error | null = null;
    this.streamed = this.isBehind = false;
    try {
      failure = await this.readAnswer(runId, stream.signal);
    } catch (error) {
      failure = error as Error;
    }
    const isLost = failure instanceof HubError; // of the connection or the sign-in, not of the model
    this.stream = null;
    if (this.closed) return;
    this.set({ status: "ready", startedAt: null });
    await this.load(this.streamed ? NO_ERROR : undefined);
    if (this.isBusy) return; // the next message was sent meanwhile, and its answer is followed once the hub has it
    this.isStale ||= isLost;
    if (isLost && runId !== null) this.followed.delete(runId); // the event of its end is news
    if (failure !== null) this.set({ error: failure, retry: isLost ? "read" : "answer" });
    // What waited begins at once; its event may have come before the stream ended.
    else if ((this.streamed || this.isBehind) && (this.state.queued.length > 0 || this.hasOpenAnswer())) void this.follow();
  }

  /** Read the stream to its end. A connection that is lost is opened again: the answer goes on without it. */
  private async readAnswer(runId: string | null, signal: AbortSignal): Promise<Error | null> {
    for (let attempt = 0; attempt < RETRIES; attempt++) {
      if (attempt > 0) await new Promise((resolve) => setTimeout(resolve, 300 * 2 ** attempt));
      const decoder = new MessageDecoder();
      const stream = new WatchedStream(signal);
      try {
        const path = `/api/chat/${encodeURIComponent(this.id)}/stream`;
        const response = await send("GET", path, { query: { sdk: 7, interval: FRAME_MS }, signal: stream.signal });
        if (response.status === 204) return null;
        this.streamed = true;
        await this.read(response, decoder, { stream, signal, runId });
      } catch (error) {
        if (signal.aborted || (error instanceof HubError && error.status >= 400)) throw error;
      } finally {
        stream.close();
      }
      if (decoder.error !== null) return new Error(decoder.error);
      if (decoder.finished) return null;
    }
    return new HubError(0, "unreachable", "The connection to the hub was lost.", "The answer goes on without this page, and is shown once the hub answers.");
  }

  private async read(
    response: Response,
    decoder: MessageDecoder,
    { stream, signal, runId }: { stream: WatchedStream; signal: AbortSignal; runId: string | null },
  ): Promise<void> {
    const run = response.headers.get("x-dragoman-run") ?? runId;
    if (run !== null) this.followed.add(run);
    const before = this.state.messages;
    let timer: ReturnType<typeof setTimeout> | null = null;
    let shown = -FRAME_MS;
    let pause = FRAME_MS;
    const show = () => {
      timer = null;
      shown = performance.now();
      const message = decoder.flush();
      if (message === null || signal.aborted) return;
      const runs = run === null ? this.state.runs : { ...this.state.runs, [message.id]: run };
      this.set({ status: "streaming", messages: withMessage(before, message), runs, startedAt: this.state.startedAt ?? hubTime() });
      // React renders in a microtask that the change has queued, so this one runs after it.
      queueMicrotask(() => (pause = Math.max(FRAME_MS, (performance.now() - shown) / MAX_SHARE)));
    };
    try {
      for await (const frames of stream.read(response)) {
        for (const { data } of frames) {
          if (data !== "[DONE]") decoder.apply(JSON.parse(data) as Chunk);
        }
        this.takeTransient(decoder);
        timer ??= setTimeout(show, Math.max(0, shown + pause - performance.now()));
      }
    } finally {
      if (timer !== null) clearTimeout(timer);
      show();
    }
  }

  private takeTransient(decoder: MessageDecoder): void {
    if (decoder.transient.length === 0) return;
    const parts: OtherPart[] = decoder.transient.splice(0);
    if (parts.some((part) => part.type === "data-queued")) void this.loadQueue().catch(() => undefined);
  }

  private set(changes: Partial<ChatState>): void {
    this.state = { ...this.state, ...changes };
    for (const watcher of [...this.watchers]) watcher();
  }
}

/** An answer that another tab or client of this session has begun first, in the words of the page. */
function refusalOf(error: Error): Error {
  if (!(error instanceof HubError && error.code === "run_active")) return error;
  const hint = "Its answer is shown as it comes. Send it when it has ended, or stop that answer first.";
  return new HubError(error.status, error.code, "Another tab began an answer in this session first, so yours was not begun.", hint);
}

function withMessage(messages: Message[], message: Message): Message[] {
  const at = messages.findIndex((each) => each.id === message.id);
  return at < 0 ? [...messages, message] : [...messages.slice(0, at), message];
}

/** The new list, with the objects of the old one where nothing has changed: they are not rendered again. */
function keepSame(old: Message[], now: Message[]): Message[] {
  const known = new Map(old.map((message) => [message.id, message]));
  return now.map((message) => {
    const before = known.get(message.id);
    return before !== undefined && JSON.stringify(before) === JSON.stringify(message) ? before : message;
  });
}

function userMessage(id: string, text: string, files: FilePart[] = []): Message {
  const parts: Message["parts"] = text === "" ? [...files] : [{ type: "text", text }, ...files];
  return { id, role: "user", parts };
}

function pick(options: SendOptions) {
  return { model: options.model, agent: options.agent };
}

export function newId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return btoa(String.fromCharCode(...bytes)).replace(/\+/g, "-").replace(/\//g, "_");
}
