// Runs the code of the section "Approvals that are given elsewhere" of docs/usechat.md: a page waits for an approval, which the API answers.
//   {"sdk": "7", "code": "…", "hub": "http://…", "headers": {…}, "session": "…", "text": "…"}  →  {"message": {…}, "followed": true}
let text = '';
for await (const piece of process.stdin) text += piece;
const input = JSON.parse(text);
const sdk = await import(input.sdk === '6' ? 'ai6' : 'ai');
const { Chat } = await import(input.sdk === '6' ? 'react6' : '@ai-sdk/react');

const headers = input.headers;
const paths = [];
let hears = () => {};
const follows = new Promise(resolve => { hears = resolve; });
const plainFetch = globalThis.fetch;
globalThis.fetch = async (path, init) => {
  paths.push(String(path));
  const response = await plainFetch(new URL(path, input.hub), { ...init, headers: { ...init?.headers, ...headers } });
  if (String(path).startsWith('/api/events')) hears();
  return response;
};

const chat = new Chat({ id: input.session, transport: new sdk.DefaultChatTransport({ api: '/api/chat' }), onError: error => { throw error; } });
const followApprovals = new Function('headers', `${input.code}\nreturn followApprovals;`)(headers);

await chat.sendMessage({ text: input.text });
const part = chat.lastMessage.parts.find(each => each.state === 'approval-requested');
const following = followApprovals(chat);
await follows;
await plainFetch(new URL(`/api/approvals/${part.approval.id}`, input.hub), { method: 'POST', headers, body: '{"approved": true}' });
while (chat.status !== 'ready' || chat.lastMessage.parts.at(-1)?.type !== 'text') {
  await Promise.race([following, new Promise(resolve => setTimeout(resolve, 20))]);
}
console.log(JSON.stringify({ message: chat.lastMessage, messages: chat.messages.length, posts: paths.filter(path => path === '/api/chat').length }));
process.exit(0);
