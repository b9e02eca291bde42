/** Server-sent events over fetch: the frames of a response, however its bytes are cut. */
export interface Frame {
  id: string | null;
  data: string;
}

let keepAlive = 15_000; // ms: the hub sends a comment after so long without anything else
const MIN_KEEP_ALIVE = 5_000; // ms
const MAX_TICK = 10_000; // ms between two looks

/** Take `keep_alive` of the hub's configuration, in seconds. */
export function setKeepAlive(seconds: number): void {
  keepAlive = Math.max(MIN_KEEP_ALIVE, seconds * 1000);
}

/**
 * A request for a stream that ends when nothing has come for twice the time between two comments, and when the network
 * is back. A connection of before a sleep of this machine may never end by itself, and brings nothing any more.
 *
 * Its `signal` goes to the request. What has come meanwhile has one more look's time to be read: after a sleep or under
 * load, the timer may be first.
 */
export class WatchedStream {
  private readonly controller = new AbortController();
  private readonly timer: ReturnType<typeof setInterval>;
  private heardAt = Date.now(); // a clock that goes on while the machine sleeps
  private wasSilent = false;

  constructor(private readonly parent: AbortSignal) {
    this.timer = setInterval(this.look, Math.min(keepAlive / 3, MAX_TICK));
    document.addEventListener("visibilitychange", this.look);
    window.addEventListener("online", this.end);
    parent.addEventListener("abort", this.end);
    if (parent.aborted) this.end();
  }

  get signal(): AbortSignal {
    return this.controller.signal;
  }

  /** Yield the frames of the answer. */
  read(response: Response): AsyncGenerator<Frame[]> {
    this.note();
    return readFrames(response.body!, this.signal, this.note);
  }

  /** Stop watching. */
  close(): void {
    clearInterval(this.timer);
    document.removeEventListener("visibilitychange", this.look);
    window.removeEventListener("online", this.end);
    this.parent.removeEventListener("abort", this.end);
  }

  private readonly end = (): void => this.controller.abort();

  private readonly note = (): void => {
    this.heardAt = Date.now();
    this.wasSilent = false;
  };

  private readonly look = (): void => {
    const isSilent = Date.now() - this.heardAt > 2 * keepAlive;
    if (isSilent && this.wasSilent) this.end();
    this.wasSilent = isSilent;
  };
}

/** Yield the frames of a body, and note whenever something comes: comments are left out, but show that the connection lives. */
async function* readFrames(body: ReadableStream<Uint8Array>, signal: AbortSignal, note: () => void): AsyncGenerator<Frame[]> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const stop = () => void reader.cancel().catch(() => undefined);
  signal.addEventListener("abort", stop);
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      note();
      const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n");
      rest = blocks.pop() ?? "";
      const frames = blocks.map(parseFrame).filter((frame) => frame !== null);
      if (frames.length > 0) yield frames;
    }
  } finally {
    signal.removeEventListener("abort", stop);
    stop();
  }
}

function parseFrame(block: string): Frame | null {
  let id: string | null = null;
  const data: string[] = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
    else if (line.startsWith("id:")) id = line.slice(3).trim();
  }
  return data.length === 0 ? null : { id, data: data.join("\n") };
}
