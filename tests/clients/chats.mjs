// The SDK's real Chat with its default transport, version 7 or 6, with everything it does written down.
import { loggingFetch } from './wire.mjs';

const PACKAGES = { 7: ['ai', '@ai-sdk/react'], 6: ['ai6', 'react6'] };

export async function loadSdk(version) {
  const [core, react] = PACKAGES[version] ?? [];
  if (!core) throw new Error(`no such SDK: ${version}`);
  return { ...(await import(core)), Chat: (await import(react)).Chat };
}

function autoSend(sdk, which) {
  const tools = sdk.lastAssistantMessageIsCompleteWithToolCalls;
  const approvals = sdk.lastAssistantMessageIsCompleteWithApprovalResponses;
  return { tools, approvals, both: options => tools(options) || approvals(options) }[which];
}

function makeTransport(sdk, scenario, log, tab) {
  const takeCut = () => {
    const cut = tab.cut;
    tab.cut = undefined;
    return cut;
  };
  class LoggedTransport extends sdk.DefaultChatTransport {
    processResponseStream(stream) {
      const note = new TransformStream({
        transform(chunk, controller) {
          tab.accepted.push(chunk);
          controller.enqueue(chunk);
          log.notify();
        },
      });
      return super.processResponseStream(stream).pipeThrough(note);
    }
  }
  return new LoggedTransport({
    api: scenario.api,
    headers: scenario.headers ?? {},
    body: scenario.body ?? {},
    fetch: loggingFetch(log, tab.name, { arm: takeCut, maxRequests: scenario.maxRequests }),
  });
}

/** A message waits for this session's run to end, or does so no longer. */
export function noteQueued(tab, { messageId, message, state }) {
  tab.next = (tab.next ?? []).filter(each => each.id !== messageId);
  if (state === 'queued') tab.next.push(message);
}

/** What docs/usechat.md has a page do at the end of an answer: show the next message, and follow its answer. */
async function followOn(chat, tab, log) {
  const message = (tab.next ?? []).shift();
  if (!message) return;
  tab.pending += 1;
  await new Promise(resolve => setImmediate(resolve)); // the SDK calls this before the chat is ready again
  chat.messages = [...chat.messages, message];
  await chat.resumeStream().finally(() => ((tab.pending -= 1), log.notify()));
}

/** One browser tab: a Chat and what it went through. */
export function openTab(sdk, scenario, log, { name, id, messages, past }) {
  const tab = past ?? { name, transitions: [], finishes: [], errors: [], toolCalls: [], data: [], accepted: [], pending: 0, stopped: false };
  const chat = new sdk.Chat({
    id,
    messages,
    transport: makeTransport(sdk, scenario, log, tab),
    sendAutomaticallyWhen: autoSend(sdk, scenario.auto),
    onToolCall({ toolCall }) {
      tab.toolCalls.push(toolCall);
      const answers = scenario.clientTools ?? {};
      if (!(toolCall.toolName in answers)) return;
      void chat.addToolOutput({ tool: toolCall.toolName, toolCallId: toolCall.toolCallId, output: answers[toolCall.toolName] });
    },
    onData: part => {
      tab.data.push(part);
      if (part.type === 'data-queued') noteQueued(tab, part.data);
    },
    onError: error => tab.errors.push({ name: error.name, message: error.message.slice(0, 1000) }),
    onFinish: ({ message, isAbort, isDisconnect, isError, finishReason }) => {
      tab.finishes.push({ messageId: message?.id, isAbort, isDisconnect, isError, finishReason });
      const waits = message.parts.some(part => ['approval-requested', 'input-available'].includes(part.state));
      if (scenario.follows && !isAbort && !waits) void followOn(chat, tab, log);
    },
  });
  tab.transitions.push(chat.status);
  chat['~registerStatusCallback'](() => {
    if (chat.status !== tab.transitions.at(-1)) tab.transitions.push(chat.status);
    log.notify();
  });
  chat['~registerMessagesCallback'](() => log.notify());
  tab.chat = chat;
  return tab;
}

/** The tool parts of the last assistant message. */
export function toolParts(chat) {
  const last = chat.messages.findLast(message => message.role === 'assistant');
  return (last?.parts ?? []).filter(part => part.toolCallId !== undefined);
}

export function toolName(part) {
  return part.type === 'dynamic-tool' ? part.toolName : part.type.slice('tool-'.length);
}

export function lastText(chat) {
  const last = chat.messages.at(-1);
  if (last?.role !== 'assistant') return '';
  return last.parts.flatMap(part => (part.type === 'text' ? [part.text] : [])).join('');
}
