#!/usr/bin/env node
// Runs the Next.js example: its route gives a token, its transport chats with the hub. HUB and HUB_KEY are set.
import path from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { build } from 'esbuild';

const here = path.dirname(fileURLToPath(import.meta.url));
const example = path.join(here, '../../examples/tokens/next');
const folder = process.argv[2];

async function load(file) {
  const outfile = path.join(folder, `${path.basename(file)}.mjs`);
  await build({
    entryPoints: [path.join(example, file)],
    outfile,
    bundle: true,
    format: 'esm',
    platform: 'node',
    nodePaths: [path.join(here, 'node_modules')],
    logLevel: 'error',
  });
  return await import(pathToFileURL(outfile));
}

const route = await load('app/api/token/route.ts');
const real = globalThis.fetch;
let tokens = 0;
globalThis.fetch = async (address, options = {}) => {
  if (address !== '/api/token') return await real(address, options);
  tokens += 1;
  return await route.POST(new Request('http://app.test/api/token', { ...options, headers: { cookie: 'user=ada' } }));
};
const { hubAccess, hubTransport } = await load('lib/hub.ts');
const access = await hubAccess();
const transport = hubTransport(access.hub);

async function chat(chatId) {
  const messages = [{ id: `u-${chatId}`, role: 'user', parts: [{ type: 'text', text: 'hello' }] }];
  const request = { chatId, messages, trigger: 'submit-message', messageId: undefined, abortSignal: undefined };
  const chunks = [];
  for await (const chunk of await transport.sendMessages(request)) chunks.push(chunk);
  return chunks.filter(chunk => chunk.type === 'text-delta').map(chunk => chunk.delta).join('');
}

const mine = await chat(`${access.prefix}chat`);
const others = await chat('bob/chat').catch(error => `refused: ${error.message}`);
const stranger = await route.POST(new Request('http://app.test/api/token', { method: 'POST' }));
console.log(JSON.stringify({ mine, others, stranger: stranger.status, tokens, knowsKey: JSON.stringify(access).includes(process.env.HUB_KEY) }));
