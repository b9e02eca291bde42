// A runner: this process answers sessions of a hub. It needs node's own WebSocket and nothing else.
//
//     DRAGOMAN_KEY=dgm_... node examples/runners/runner.mts http://127.0.0.1:8000 my-session
//
// Node 22.18 and later run TypeScript as it is. Put your agent in place of `answer`. Frames of a turn are numbered.
// The hub acknowledges what it has stored; what it has not is sent again after a reconnection, so nothing is lost
// and nothing is there twice.

type Frame = { type: string; [field: string]: any };
type Status = 'pending' | 'running' | 'completed' | 'error';

const BUFFER = 1_000_000; // characters that may wait for the hub before the agent does
const sleep = (milliseconds: number) => new Promise<void>(resolve => setTimeout(resolve, milliseconds));

class Turn {
  readonly session: string;
  readonly id: string;
  readonly text: string;
  readonly abort = new AbortController();
  readonly answers = new Map<string, (answer: Frame) => void>();
  frames: { seq: number; text: string }[] = []; // not acknowledged
  sent = 0;
  ended = false;
  private last = 0;
  private room: (() => void)[] = [];
  private send: () => void;

  constructor(prompt: Frame, send: () => void) {
    this.session = prompt.sessionId;
    this.id = prompt.turnId;
    this.text = prompt.text;
    this.send = send;
  }

  put(type: string, fields: object = {}): void {
    if (this.ended) return;
    this.last += 1;
    const frame = { type, sessionId: this.session, turnId: this.id, seq: this.last, ...fields };
    this.frames.push({ seq: this.last, text: JSON.stringify(frame) });
    this.ended = type === 'message.finalize';
    this.send();
  }

  async write(type: string, fields: object): Promise<void> {
    while (this.frames.reduce((sum, frame) => sum + frame.text.length, 0) > BUFFER)
      await new Promise<void>(resolve => this.room.push(resolve));
    this.abort.signal.throwIfAborted();
    this.put(type, fields);
  }

  textDelta(delta: string): Promise<void> {
    return this.write('message.part.text-delta', { delta });
  }

  tool(callId: string, toolName: string, status: Status, fields: object): Promise<void> {
    return this.write('message.part.tool-update', { callId, toolName, status, ...fields });
  }

  async ask(text: string, options: string[]): Promise<Frame> {
    const questionId = `question-${this.last}`;
    const answered = new Promise<Frame>((resolve, reject) => {
      this.answers.set(questionId, resolve);
      this.abort.signal.addEventListener('abort', () => reject(this.abort.signal.reason));
    });
    await this.write('question', { questionId, text, options });
    return answered;
  }

  acknowledge(seq: number): void {
    this.frames = this.frames.filter(frame => frame.seq > seq);
    this.room.splice(0).forEach(resolve => resolve());
  }
}

// The agent: counts letters with a tool, asks if it is told to, and repeats the prompt word by word.
async function answer(turn: Turn): Promise<void> {
  await turn.tool('count-1', 'count', 'running', { args: { text: turn.text } });
  await turn.tool('count-1', 'count', 'completed', { result: { letters: turn.text.length } });
  if (turn.text.includes('ask')) {
    const reply = await turn.ask('Which colour?', ['red', 'blue']);
    await turn.textDelta(`You chose ${reply.answer}. `);
  }
  for (const word of turn.text.split(/\s+/)) {
    await turn.textDelta(`${word} `);
    await sleep(10); // as long as a model takes
  }
}

class Runner {
  private url: string;
  private key: string;
  private sessions: string[];
  private agent: (turn: Turn) => Promise<void>;
  private turns = new Map<string, Turn>();
  private socket: WebSocket | undefined;

  constructor(hub: string, key: string, sessions: string[], agent: (turn: Turn) => Promise<void>) {
    this.url = `${hub.replace(/^http/, 'ws').replace(/\/$/, '')}/api/runners`;
    this.key = key;
    this.sessions = sessions;
    this.agent = agent;
  }

  async run(): Promise<never> {
    for (let delay = 200; ; delay = Math.min(15_000, delay * 2)) {
      if (await this.connect()) delay = 100;
      await sleep(delay);
    }
  }

  // Serves one connection to its end; whether the hub welcomed it. The key is in the first message, since a browser's
  // WebSocket, which node's is, cannot set headers.
  private connect(): Promise<boolean> {
    return new Promise(resolve => {
      const socket = new WebSocket(this.url);
      let welcomed = false;
      socket.onopen = () => {
        const hello = { type: 'hello', protocol: 1, sessions: this.sessions, turns: [...this.turns.keys()] };
        socket.send(JSON.stringify(this.key ? { ...hello, token: this.key } : hello));
      };
      socket.onmessage = event => {
        const frame: Frame = JSON.parse(String(event.data));
        if (frame.type === 'welcome') {
          welcomed = true;
          this.resume(socket, frame);
        } else this.handle(frame);
      };
      socket.onclose = socket.onerror = () => {
        if (this.socket === socket) this.socket = undefined;
        console.error('no connection; trying again');
        resolve(welcomed);
      };
    });
  }

  private resume(socket: WebSocket, welcome: Frame): void {
    const stored = new Map<string, number>();
    for (const state of welcome.sessions ?? []) stored.set(state.turnId, state.seq ?? 0);
    for (const turn of this.turns.values()) {
      const seq = stored.get(turn.id);
      if (seq === undefined) {
        this.turns.delete(turn.id); // the hub has closed it
        turn.abort.abort(new Error('closed by the hub'));
      } else {
        turn.acknowledge(seq);
        turn.sent = seq;
      }
    }
    this.socket = socket;
    console.log(`answering ${this.sessions.join(', ')}`);
    this.send();
  }

  private send(): void {
    for (const turn of this.turns.values())
      for (const frame of turn.frames)
        if (frame.seq > turn.sent && this.socket?.readyState === WebSocket.OPEN) {
          turn.sent = frame.seq;
          this.socket.send(frame.text);
        }
  }

  private handle(frame: Frame): void {
    const turn = this.turns.get(frame.turnId);
    if (frame.type === 'prompt' && !turn) void this.answer(frame);
    else if (frame.type === 'abort') turn?.abort.abort(new Error('aborted'));
    else if (frame.type === 'answer') turn?.answers.get(frame.questionId)?.(frame);
    else if (frame.type === 'ack' && turn) {
      turn.acknowledge(frame.seq);
      if (turn.ended && turn.frames.length === 0) this.turns.delete(turn.id);
    } else if (frame.type === 'refused') console.error(`the hub refused a frame: ${frame.error.message}`);
  }

  private async answer(prompt: Frame): Promise<void> {
    const turn = new Turn(prompt, () => this.send());
    this.turns.set(turn.id, turn);
    turn.put('message.create');
    try {
      await this.agent(turn);
      turn.put('message.finalize', { reason: 'end_turn' });
    } catch (error) {
      if (turn.abort.signal.aborted) turn.put('message.finalize', { reason: 'canceled' });
      else turn.put('message.finalize', { reason: 'error', error: String(error) });
    }
  }
}

const [hub = 'http://127.0.0.1:8000', ...sessions] = process.argv.slice(2);
await new Runner(hub, process.env.DRAGOMAN_KEY ?? '', sessions.length ? sessions : ['demo'], answer).run();
