// Runs the code of the section "Approvals" of docs/usechat.md with the real packages: asks, shows the card, clicks, and waits for the end. A line for each line of stdin:
//   {"sdk": "7", "code": "…", "hub": "http://…", "headers": {…}, "text": "…", "click": "Approve"}  →  {"card": html, "requests": n, "message": {…}}
import React from 'react';
import readline from 'node:readline';
import { renderToStaticMarkup } from 'react-dom/server';
import { transformSync } from 'esbuild';

const plainFetch = globalThis.fetch;

const button = (element, label) => {
  if (!element?.props) return undefined;
  if (element.type === 'button' && element.props.children === label) return element;
  return React.Children.toArray(element.props.children).map(child => button(child, label)).find(Boolean);
};

async function play(asked) {
  const sdk = await import(asked.sdk === '6' ? 'ai6' : 'ai');
  const { Chat } = await import(asked.sdk === '6' ? 'react6' : '@ai-sdk/react');

  let requests = 0;
  globalThis.fetch = (path, init) => {
    requests += 1;
    return plainFetch(new URL(path, asked.hub), { ...init, headers: { ...init?.headers, ...asked.headers } });
  };

  let changed = () => {};
  const useChat = options => new Chat({ ...options, id: asked.session, onFinish: () => changed(), onError: error => { throw error; } });
  const { code } = transformSync(asked.code, { loader: 'tsx' });
  const page = new Function('React', 'useChat', ...Object.keys(sdk), `${code}\nreturn { chat, Approval };`);
  const { chat, Approval } = page(React, useChat, ...Object.values(sdk));

  /** Waits until the condition holds at the end of an answer. */
  const until = async condition => {
    while (!condition()) await new Promise(resolve => { changed = resolve; });
  };
  const parts = () => chat.lastMessage?.parts ?? [];
  const waiting = () => parts().find(part => part.state === 'approval-requested');

  const sending = chat.sendMessage({ text: asked.text });
  await until(waiting);
  await sending;
  const part = waiting();
  const card = renderToStaticMarkup(React.createElement(Approval, { part }));
  button(Approval({ part }), asked.click).props.onClick();
  await until(() => parts().at(-1)?.type === 'text');
  const hidden = renderToStaticMarkup(React.createElement(Approval, { part: parts().find(each => each.type.startsWith('tool-')) }));
  return { card, requests, hidden, message: chat.lastMessage };
}

for await (const line of readline.createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(await play(JSON.parse(line)))}\n`);
}
