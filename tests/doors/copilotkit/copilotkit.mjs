// Plays a conversation with CopilotKit's client over its runtime, which asks the hub, and prints what the client has.
// stdin: {url, headers, turns: [text]}
import { createServer } from 'node:http'
import { randomUUID } from 'node:crypto'

process.env.COPILOTKIT_TELEMETRY_DISABLED = process.env.DO_NOT_TRACK = 'true'
globalThis.window = globalThis // the client connects only in a browser
const { HttpAgent } = await import('@ag-ui/client')
const { CopilotKitCore } = await import('@copilotkit/core')
const { CopilotRuntime, InMemoryAgentRunner } = await import('@copilotkit/runtime/v2')
const { createCopilotNodeListener } = await import('@copilotkit/runtime/v2/node')
const { z } = await import('zod')

const scenario = JSON.parse(await new Promise(resolve => {
  let text = ''
  process.stdin.on('data', piece => { text += piece }).on('end', () => resolve(text))
}))
const problems = []
console.log = console.warn = console.error = (...words) => problems.push(words.map(String).join(' '))

const runtime = new CopilotRuntime({
  agents: { default: new HttpAgent({ url: scenario.url, headers: scenario.headers ?? {} }) },
  runner: new InMemoryAgentRunner(),
})
const server = createServer(createCopilotNodeListener({ runtime, basePath: '/api/copilotkit' }))
await new Promise(resolve => server.listen(0, '127.0.0.1', resolve))

const painted = []
const core = new CopilotKitCore({
  runtimeUrl: `http://127.0.0.1:${server.address().port}/api/copilotkit`,
  tools: [{
    name: 'paint',
    description: 'Paint the page',
    parameters: z.object({ colour: z.string() }),
    handler: async ({ colour }) => { painted.push(colour); return 'painted' },
  }],
})
await new Promise((resolve, reject) => core.subscribe({
  onRuntimeConnectionStatusChanged: ({ status }) => {
    if (status === 'connected') resolve()
    if (status === 'error') reject(new Error(problems.join('\n')))
  },
  onError: ({ error }) => { problems.push(String(error?.message ?? error)) },
}))
const agent = core.getAgent('default')
agent.threadId = scenario.threadId ?? 't'
for (const text of scenario.turns) {
  agent.addMessage({ id: randomUUID(), role: 'user', content: text })
  await core.runAgent({ agent })
}
process.stdout.write(JSON.stringify({ messages: agent.messages, state: agent.state, painted, problems }))
process.exit(0)
