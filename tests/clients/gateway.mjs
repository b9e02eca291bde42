// Lets the official Node SDKs ask a gateway, or a model server by itself, and prints what they made of each answer: a line for each line of stdin.
//   echo '{"openai": {"baseURL", "apiKey"}, "anthropic": {...}, "cases": [{"sdk", "how", "model", ...body}]}' | node gateway.mjs
// how: plain · fold (the SDK's accumulator) · each (plain iteration) · abort (after the first piece)
// prints one {said} or {error: {kind, status, message}} for each case, in order; with `each` both may be there.
import readline from 'node:readline';
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';

const HI = [{ role: 'user', content: 'Hi' }];

const ways = {
  openai: {
    plain: (client, body) => client.chat.completions.create(body),
    fold: (client, body) => client.chat.completions.stream(body).finalChatCompletion(),
    open: (client, body) => client.chat.completions.create({ ...body, stream: true }),
  },
  anthropic: {
    plain: (client, body) => client.messages.create(body),
    fold: (client, body) => client.messages.stream(body).finalMessage(),
    open: (client, body) => client.messages.create({ ...body, stream: true }),
  },
};

async function iterate(stream, said, abort) {
  for await (const piece of stream) {
    said.push(piece);
    if (abort) {
      stream.controller.abort();
      return;
    }
  }
}

async function play(client, { sdk, how, ...body }) {
  const asked = { messages: HI, ...(sdk === 'anthropic' ? { max_tokens: 99 } : {}), ...body };
  const report = {};
  try {
    if (how === 'plain' || how === 'fold') report.said = await ways[sdk][how](client, asked);
    else await iterate(await ways[sdk].open(client, asked), (report.said = []), how === 'abort');
  } catch (error) {
    report.error = { kind: error.constructor.name, status: error.status ?? null, message: error.message };
  }
  return report;
}

for await (const line of readline.createInterface({ input: process.stdin })) {
  const { openai, anthropic, cases } = JSON.parse(line);
  const clients = {
    openai: new OpenAI({ maxRetries: 0, ...openai }),
    anthropic: new Anthropic({ maxRetries: 0, ...anthropic }),
  };
  const reports = [];
  for (const one of cases) reports.push(await play(clients[one.sdk], one));
  process.stdout.write(`${JSON.stringify(reports)}\n`);
}
