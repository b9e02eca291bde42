// Reads relayed streams with the official Node SDKs, without a network: each body is what `fetch` returns.
//   echo '[{"sdk": "openai" | "anthropic", "body": "data: …"}]' | node odd_frames.mjs
// prints one {folded, pieces} for each case, in order: what the accumulator made of it, and how many pieces plain
// iteration gave; {error} where either of the two failed.
import fs from 'node:fs';
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';

const SSE = { headers: { 'content-type': 'text/event-stream' } };
const body = { model: 'm', max_tokens: 9, messages: [{ role: 'user', content: 'Hi' }] };

async function read({ sdk, body: raw }) {
  const settings = { apiKey: 'x', baseURL: 'http://hub', maxRetries: 0, fetch: async () => new Response(raw, SSE) };
  const [client, fold] =
    sdk === 'openai'
      ? [new OpenAI(settings).chat.completions, (stream) => stream.finalChatCompletion()]
      : [new Anthropic(settings).messages, (stream) => stream.finalMessage()];
  let pieces = 0;
  for await (const _ of await client.create({ ...body, stream: true })) pieces += 1;
  return { folded: await fold(client.stream(body)), pieces };
}

const reports = [];
for (const one of JSON.parse(fs.readFileSync(0, 'utf8'))) {
  try {
    reports.push(await read(one));
  } catch (error) {
    reports.push({ error: `${error.constructor.name}: ${error.message}` });
  }
}
console.log(JSON.stringify(reports));
