// A page at a host that follows an answer while the answer's host dies. Prints "shown" once it shows some words, and at its end a line:
//   {"sdk": "7", "hub": "http://…", "session": "…", "words": "…", "code": "…"}  →  {"parts": […], "shown": […], "before": "…"}
// `code` is that of the section "After a crash of the hub" of docs/usechat.md. Like a page there, AI SDK 7 asks for `sdk=7`.
let input = '';
for await (const piece of process.stdin) input += piece;
const { sdk, hub, session, words, code } = JSON.parse(input);
const { DefaultChatTransport } = await import(sdk === '6' ? 'ai6' : 'ai');
const { Chat } = await import(sdk === '6' ? 'react6' : '@ai-sdk/react');
const shownParts = new Function(`${code}\nreturn shownParts;`)();

const query = sdk === '7' ? '?sdk=7' : '';
const transport = new DefaultChatTransport({
  api: `${hub}/api/chat`,
  prepareReconnectToStreamRequest: ({ id }) => ({ api: `${hub}/api/chat/${id}/stream${query}` }),
});
const chat = new Chat({ id: session, transport, onError: error => { throw error; } });
const textOf = parts => parts.flatMap(part => (part.type === 'text' ? [part.text] : [])).join('');

let before;
chat['~registerMessagesCallback'](() => {
  const text = textOf(chat.lastMessage?.parts ?? []);
  if (before !== undefined || !text.includes(words)) return;
  before = text;
  console.log('shown');
});
await chat.resumeStream();
console.log(JSON.stringify({ before, parts: chat.lastMessage.parts, shown: shownParts(chat.lastMessage.parts) }));
