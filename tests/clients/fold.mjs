// The message that `readUIMessageStream` of the AI SDK makes of a response body.
//   echo '[{"body": "data: {...}\n\n", "sdk": 7}]' | node fold.mjs     prints one message for each body
import { readUIMessageStream as read7 } from 'ai';
import { readUIMessageStream as read6 } from 'ai6';
import { splitEvents } from './check.mjs';

async function fold({ body, sdk }) {
  const frames = splitEvents(body).data.filter(text => text !== '[DONE]').map(text => JSON.parse(text));
  const read = sdk === 7 ? read7 : read6;
  let message;
  for await (const state of read({ stream: ReadableStream.from(frames), terminateOnError: true })) message = state;
  return message;
}

let input = '';
for await (const piece of process.stdin) input += piece;
console.log(JSON.stringify(await Promise.all(JSON.parse(input).map(fold))));
