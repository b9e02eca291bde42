// The order that the frames of one response must keep: start; steps; inside a step blocks open, grow and close; a tool's
// output in the step of its call; finish last.

const CLOSED_SET = new Set(['error', 'abort']);
const OUTPUTS = new Set(['tool-output-available', 'tool-output-error', 'tool-output-denied']);

export class Grammar {
  /** @param context {method, known: tool call ids of earlier runs of the message, messageId?: id to go on with, used: ids of other turns} */
  constructor(context) {
    this.context = { known: new Set(), used: new Set(), method: 'POST', ...context };
    this.violations = [];
    this.count = 0;
    this.steps = 0;
    this.inStep = false;
    this.blocks = new Set();
    this.calls = new Map();
    this.approvals = new Set();
    this.ended = undefined; // finish, error or abort, once seen
  }

  read(frame) {
    this.count += 1;
    this.frame = frame;
    if (this.count === 1 && frame.type !== 'start') this.say('the first frame is not start');
    if (this.ended === 'finish') this.say('a frame after finish');
    else if (this.ended && !['finish-step', 'finish'].includes(frame.type)) this.say(`a frame after ${this.ended}`);
    if (OUTPUTS.has(frame.type)) this.output(frame);
    else this.rules[frame.type.startsWith('data-') ? 'data' : frame.type]?.call(this, frame);
    if (CLOSED_SET.has(frame.type) || frame.type === 'finish') this.ended = frame.type;
  }

  /** The end of a body that nobody on this side cut. */
  end() {
    this.frame = undefined;
    if (!this.ended) this.say('the body ended without finish or error');
  }

  say(what) {
    const where = this.frame ? `frame ${this.count} ${JSON.stringify(this.frame).slice(0, 200)}` : `after ${this.count} frames`;
    this.violations.push(`grammar: ${what} (${where})`);
  }

  within() {
    if (!this.inStep) this.say('outside of a step');
  }

  open(kind, id) {
    this.within();
    if (this.blocks.has(`${kind} ${id}`)) this.say('the block is open already');
    if ([...this.calls.values()].some(call => call.step === this.steps && call.state === 'done')) {
      this.say('a block after a tool result, which begins a new step');
    }
    this.blocks.add(`${kind} ${id}`);
  }

  grow(kind, id) {
    this.within();
    if (!this.blocks.has(`${kind} ${id}`)) this.say('no such open block');
  }

  close(kind, id) {
    this.grow(kind, id);
    this.blocks.delete(`${kind} ${id}`);
  }

  settled() {
    for (const block of this.blocks) this.say(`the block "${block}" is still open`);
    for (const [id, call] of this.calls) if (call.state === 'streaming') this.say(`the input of call ${id} never ended`);
  }

  input(frame, state) {
    this.within();
    const call = this.calls.get(frame.toolCallId);
    if (call && call.state !== 'streaming') this.say('the call has its input already');
    if (call && call.name !== frame.toolName) this.say('the call changes its tool name');
    if (!call && this.context.known.has(frame.toolCallId) && this.context.method === 'POST') this.say('the call id is taken');
    this.calls.set(frame.toolCallId, { step: this.steps, state, name: frame.toolName, dynamic: frame.dynamic });
  }

  output(frame) {
    const call = this.calls.get(frame.toolCallId);
    if (!call) {
      if (!this.context.known.has(frame.toolCallId)) this.say('the output of an unknown call');
      else if (this.steps > 0) this.say('the output of an earlier call must stand before the first step');
      return;
    }
    this.within();
    if (call.step !== this.steps) this.say("the output is not in its call's step");
    const retold = this.context.method === 'GET' && call.state === 'streaming' && call.grown;
    if (call.state !== 'available' && !retold) this.say(`the output of a call that is ${call.state}`);
    if (frame.preliminary !== true) call.state = 'done';
  }

  rules = {
    start(frame) {
      if (this.count > 1) this.say('a second start');
      if (!frame.messageId) this.say('start has no messageId');
      if (this.context.messageId && frame.messageId !== this.context.messageId) this.say(`start should go on with message ${this.context.messageId}`);
      if (this.context.used.has(frame.messageId)) this.say('start takes the id of another message');
    },
    'start-step'() {
      if (this.inStep) this.say('a step inside a step');
      this.inStep = true;
      this.steps += 1;
    },
    'finish-step'() {
      this.within();
      this.settled();
      this.inStep = false;
    },
    'text-start'(frame) { this.open('text', frame.id); },
    'text-delta'(frame) { this.grow('text', frame.id); },
    'text-end'(frame) { this.close('text', frame.id); },
    'reasoning-start'(frame) { this.open('reasoning', frame.id); },
    'reasoning-delta'(frame) { this.grow('reasoning', frame.id); },
    'reasoning-end'(frame) { this.close('reasoning', frame.id); },
    'tool-input-start'(frame) {
      if (this.calls.has(frame.toolCallId)) this.say('the call id is taken');
      this.input(frame, 'streaming');
    },
    'tool-input-delta'(frame) {
      const call = this.calls.get(frame.toolCallId);
      if (call?.state !== 'streaming') this.say('no such input is streaming');
      else call.grown = true;
    },
    'tool-input-available'(frame) { this.input(frame, 'available'); },
    'tool-input-error'(frame) { this.input(frame, 'done'); },
    'tool-approval-request'(frame) {
      const call = this.calls.get(frame.toolCallId);
      const goesOn = !call && this.steps === 0 && this.context.known.has(frame.toolCallId);
      if (call?.state !== 'available' && !goesOn) this.say('approval is asked for a call without input');
      if (this.approvals.has(frame.approvalId)) this.say('the approval id is taken');
      this.approvals.add(frame.approvalId);
    },
    'source-url'() { this.within(); },
    'source-document'() { this.within(); },
    file() { this.within(); },
    error() { this.settled(); },
    abort() { this.settled(); },
    finish(frame) {
      if (this.inStep) this.say('finish inside a step');
      this.settled();
      if (frame.finishReason === 'tool-calls') return;
      for (const [id, call] of this.calls) if (call.state === 'available') this.say(`call ${id} has neither an output nor an error`);
    },
  };
}
