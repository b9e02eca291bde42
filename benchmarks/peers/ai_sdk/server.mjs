// The AI SDK's own server side on Node, as its documentation serves useChat: node server.mjs --upstream URL --model NAME
import { createServer } from 'node:http';
import { parseArgs } from 'node:util';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { convertToModelMessages, isStepCount, streamText, tool } from 'ai';
import { z } from 'zod';

const { values } = parseArgs({ options: { upstream: { type: 'string' }, model: { type: 'string' } } });
const provider = createOpenAICompatible({ name: 'up', baseURL: values.upstream, apiKey: 'benchmark', includeUsage: true });
const model = provider(values.model);

// The same tool, with the same arguments, that the upstream's tool steps call.
const tools = {
  hub_call: tool({
    description: 'Call operations.',
    inputSchema: z.object({ calls: z.array(z.object({ tool: z.string(), input: z.record(z.string(), z.any()) })) }),
    execute: async ({ calls }) => calls.map((call) => ({ tool: call.tool, output: new Date().toISOString() })),
  }),
};

async function read(request) {
  const pieces = [];
  for await (const piece of request) pieces.push(piece);
  return JSON.parse(Buffer.concat(pieces).toString());
}

async function chat(request, response) {
  const { messages } = await read(request);
  const result = streamText({
    model,
    messages: await convertToModelMessages(messages),
    tools,
    stopWhen: isStepCount(10),
  });
  await result.pipeUIMessageStreamToResponse(response);
}

const server = createServer((request, response) => {
  chat(request, response).catch((error) => {
    console.error(error);
    response.destroy();
  });
});
server.listen(0, '127.0.0.1', () => console.log(`listening on http://127.0.0.1:${server.address().port}`));
