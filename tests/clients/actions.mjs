// What a user of a chat page can do, and what can happen to one: the words of a scenario.
import { lastText, noteQueued, openTab, toolName, toolParts } from './chats.mjs';

export class Stage {
  constructor(sdk, scenario, log) {
    Object.assign(this, { sdk, scenario, log, tabs: new Map(), results: [] });
    this.base = scenario.api.replace(/\/api\/.*$/, '');
    this.id = scenario.id ?? 'chat-1';
    this.open('main', scenario.messages);
  }

  open(name, messages, past) {
    const tab = openTab(this.sdk, this.scenario, this.log, { name, id: this.id, messages, past });
    this.tabs.set(name, tab);
    this.log.notify();
    return tab;
  }

  /** Perform one action, after its condition, and wait for its end unless told otherwise. */
  async act(action) {
    const perform = ACTIONS[action.do];
    if (!perform) throw new Error(`no such action: ${JSON.stringify(action)}`);
    const name = action.chat ?? 'main';
    await this.log.until(() => this.tabs.has(name), `tab ${name}`);
    if (action.after) await this.until(this.tab(action), action.after);
    const work = perform(this, this.tab(action), action);
    if (action.wait === false) return void work.catch(error => this.results.push({ do: action.do, failed: error.message }));
    let over = false;
    const ended = work.finally(() => ((over = true), this.log.notify()));
    await Promise.race([ended, this.log.until(() => over, `the end of ${JSON.stringify(action)}`)]);
    await ended; // it is over, and fails the scenario if it has failed
  }

  tab(action) {
    return this.tabs.get(action.chat ?? 'main');
  }

  /** A call of the chat that sends: the tab is busy until it settles. */
  async sending(tab, action, call) {
    tab.cut = action.cut;
    tab.pending += 1;
    try {
      await call();
    } finally {
      tab.pending -= 1;
      this.log.notify();
    }
    if (action.wait !== false) await this.idle(tab);
  }

  /** Ready or failed, nothing under way, and still so after a few turns of the event loop. */
  async idle(tab) {
    const busy = () => tab.pending > 0 || !['ready', 'error'].includes(tab.chat.status);
    for (let calm = 0; calm < 5; calm += 1) {
      if (busy()) {
        await this.log.until(() => !busy(), `chat ${tab.name} to be idle`);
        calm = 0;
      }
      await new Promise(resolve => setImmediate(resolve));
    }
  }

  async until(tab, condition) {
    if (condition.idle) return this.idle(tab);
    if (condition.ms) return new Promise(resolve => setTimeout(resolve, condition.ms));
    await this.log.until(() => holds(this, tab, condition), JSON.stringify(condition));
  }

  async request(method, path, body) {
    const headers = { ...this.scenario.headers, ...(body === undefined ? {} : { 'content-type': 'application/json' }) };
    const at = Date.now();
    const url = path.startsWith('http') ? path : this.base + path;
    const response = await fetch(url, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
    const text = await response.text();
    const json = text && /json/.test(response.headers.get('content-type') ?? '') ? JSON.parse(text) : undefined;
    return { method, url, at, answeredAt: Date.now(), status: response.status, ...(json === undefined ? { text } : { json }) };
  }

  async stored() {
    return (await this.session()).messages;
  }

  /** The messages of the session, and those that wait in it. */
  async session() {
    const answer = await this.request('GET', `/api/sessions/${encodeURIComponent(this.id)}/messages`);
    return answer.json ?? {};
  }
}

function holds(stage, tab, condition) {
  const response = stage.log.responses.findLast(entry => entry.chat === tab.name);
  const met = {
    resumed: count => stage.log.requests.find(one => one.n === response?.n)?.method === 'GET' && response.frameCount >= count,
    frames: count => (response?.frameCount ?? 0) >= count,
    requests: count => stage.log.requests.length >= count,
    text: wanted => (wanted === true ? lastText(tab.chat) !== '' : lastText(tab.chat).includes(wanted)),
    status: wanted => tab.chat.status === wanted,
    tool: state => toolParts(tab.chat).some(part => part.state === state),
    messages: count => tab.chat.messages.length >= count,
    data: type => tab.data.some(part => part.type === type),
    result: name => stage.results.some(result => result.name === name),
  };
  return Object.entries(condition).every(([name, value]) => {
    if (!met[name]) throw new Error(`no such condition: ${name}`);
    return met[name](value);
  });
}

async function answerApprovals(stage, tab, action) {
  const asked = toolParts(tab.chat).filter(part => part.state === 'approval-requested' && part.approval?.isAutomatic !== true);
  for (const part of asked) {
    await tab.chat.addToolApprovalResponse({ id: part.approval.id, approved: action.approved, reason: action.reason });
  }
  const sendsItself = ['approvals', 'both'].includes(stage.scenario.auto);
  await stage.sending(tab, action, () => (sendsItself ? undefined : tab.chat.sendMessage()));
}

async function answerTools(stage, tab, action) {
  const open = toolParts(tab.chat).filter(part => part.state === 'input-available' && (!action.tool || toolName(part) === action.tool));
  if (!open.length) throw new Error('no tool call waits for an output');
  tab.cut = action.cut;
  for (const part of open) {
    const answer = action.errorText === undefined ? { output: action.output } : { state: 'output-error', errorText: action.errorText };
    await tab.chat.addToolOutput({ tool: toolName(part), toolCallId: part.toolCallId, ...answer });
  }
  if (action.wait !== false) await stage.idle(tab);
}

async function stop(stage, tab, action) {
  tab.stopped = true;
  if (action.how !== 'client') {
    const answer = await stage.request('POST', `/api/chat/${encodeURIComponent(stage.id)}/stop`);
    stage.results.push({ do: 'stop', name: action.name ?? 'stop', ...answer });
    stage.log.notify();
  }
  if (action.how !== 'server') await tab.chat.stop();
  if (action.wait !== false) await stage.idle(tab);
}

/** The id that an action means: given, or that of the nth message of a role. */
function messageId(tab, action, role) {
  if (action.messageId || action.nth === undefined) return action.messageId;
  return tab.chat.messages.filter(message => message.role === role).at(action.nth).id;
}

async function reload(stage, tab, action) {
  const name = action.as ?? action.chat ?? 'main';
  await stage.tabs.get(name)?.chat.stop(); // a page that goes away closes its connections
  const { messages, queued } = await stage.session();
  const fresh = stage.open(name, messages, stage.tabs.get(name));
  fresh.stopped = false;
  fresh.next = [];
  for (const each of queued ?? []) noteQueued(fresh, { ...each, messageId: each.message.id, state: 'queued' });
  if (action.resume !== false) await stage.sending(fresh, action, () => fresh.chat.resumeStream());
}

async function request(stage, tab, action) {
  const path = action.path.replaceAll('{id}', encodeURIComponent(stage.id));
  const body = action.body === undefined ? undefined : JSON.parse(JSON.stringify(action.body).replaceAll('{id}', stage.id));
  const answer = await stage.request(action.method ?? 'GET', path, body);
  stage.results.push({ do: 'request', name: action.name, ...answer });
  stage.log.notify();
}

const ACTIONS = {
  send: (stage, tab, action) => stage.sending(tab, action, () => tab.chat.sendMessage({ text: action.text, files: action.files })),
  edit: (stage, tab, action) =>
    stage.sending(tab, action, () => tab.chat.sendMessage({ text: action.text, messageId: messageId(tab, { nth: -1, ...action }, 'user') })),
  regenerate: (stage, tab, action) => stage.sending(tab, action, () => tab.chat.regenerate({ messageId: messageId(tab, action, 'assistant') })),
  resume: (stage, tab, action) => stage.sending(tab, action, () => tab.chat.resumeStream()),
  reload,
  open: reload,
  output: answerTools,
  approve: answerApprovals,
  stop,
  request,
  wait: (stage, tab, action) => stage.until(tab, action.for ?? { idle: true }),
};
