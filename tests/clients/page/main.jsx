// A small chat page as an app would write it: useChat, what the hub keeps as first messages, resume, stop.
// The address says which session and key: ?id=…&key=…
import { Chat, useChat } from '@ai-sdk/react';
import {
  DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses, lastAssistantMessageIsCompleteWithToolCalls,
} from 'ai';
import { useEffect, useState } from 'react';
import { createRoot } from 'react-dom/client';

const address = new URLSearchParams(location.search);
const id = address.get('id');
const path = encodeURIComponent(id);
const headers = address.has('key') ? { authorization: `Bearer ${address.get('key')}` } : {};

function Part({ part }) {
  if (part.type === 'step-start') return <hr data-kind="step-start" />;
  if (part.text !== undefined) return <p data-kind={part.type} data-state={part.state}>{part.text}</p>;
  const shown = part.output === undefined ? part.input : part.output;
  return <div data-kind={part.type} data-state={part.state}>{JSON.stringify(shown)}</div>;
}

function Message({ message }) {
  return (
    <article data-role={message.role} data-id={message.id}>
      {message.parts.map((part, index) => <Part key={index} part={part} />)}
    </article>
  );
}

// Buttons for what the last message waits for: the options of a question, consent to a call.
function Answers({ message, chat }) {
  return message.parts.map(part => {
    if (part.state === 'approval-requested') {
      const answer = approved => chat.addToolApprovalResponse({ id: part.approval.id, approved });
      return (
        <p key={part.toolCallId}>
          <button onClick={() => answer(true)}>Approve</button> <button onClick={() => answer(false)}>Deny</button>
        </p>
      );
    }
    if (part.state !== 'input-available' || part.providerExecuted) return null;
    const choose = output => chat.addToolOutput({ tool: part.toolName, toolCallId: part.toolCallId, output });
    return (part.input?.options ?? []).map(option => <button key={option} onClick={() => choose(option)}>{option}</button>);
  });
}

function Composer({ onSend }) {
  const [text, setText] = useState('');
  const submit = event => {
    event.preventDefault();
    onSend(text);
    setText('');
  };
  return (
    <form onSubmit={submit}>
      <input aria-label="Message" value={text} onChange={event => setText(event.target.value)} />
      <button>Send</button>
    </form>
  );
}

function ChatPage({ messages: first }) {
  const [lost, setLost] = useState(0);
  const [options] = useState(() => {
    const made = {
      id,
      messages: first,
      transport: new DefaultChatTransport({ api: '/api/chat', headers }),
      sendAutomaticallyWhen: options =>
        lastAssistantMessageIsCompleteWithToolCalls(options) || lastAssistantMessageIsCompleteWithApprovalResponses(options),
      onFinish: ({ isDisconnect }) => isDisconnect && setLost(count => count + 1),
    };
    // The hook of version 6 does not tell its Chat that a resumed stream is a replay, and shows parts twice; an own Chat knows.
    return SDK === '6' ? { chat: new Chat(made) } : made;
  });
  const chat = useChat({ ...options, resume: true });
  const { messages, status, error, sendMessage, regenerate, resumeStream, stop } = chat;
  useEffect(() => {
    if (lost) void resumeStream();
  }, [lost]);
  const halt = async () => {
    await fetch(`/api/chat/${path}/stop`, { method: 'POST', headers });
    await stop();
  };
  return (
    <main>
      {messages.map(message => <Message key={message.id} message={message} />)}
      {messages.at(-1)?.role === 'assistant' && <Answers message={messages.at(-1)} chat={chat} />}
      <Composer onSend={text => sendMessage({ text })} />
      <button onClick={halt}>Stop</button> <button onClick={() => regenerate()}>Regenerate</button>
      <p>Status: <output id="status">{status}</output>, connections lost: <output id="lost">{lost}</output></p>
      {error && <p id="error">{error.message}</p>}
    </main>
  );
}

const answer = await fetch(`/api/sessions/${path}/messages`, { headers });
const { messages } = answer.ok ? await answer.json() : { messages: [] };
createRoot(document.getElementById('root')).render(<ChatPage messages={messages} />);
