// Talks to an A2A agent with the stock client and prints what came, as JSON.
// stdin: {url, headers, binding, turns: [{text | data, contextId?}]}
import { randomUUID } from 'node:crypto'
import {
  ClientFactory, ClientFactoryOptions, DefaultAgentCardResolver, JsonRpcTransportFactory, RestTransportFactory,
} from '@a2a-js/sdk/client'
import { Message, SendMessageRequest, StreamResponse } from '@a2a-js/sdk'

const scenario = JSON.parse(await new Promise(resolve => {
  let text = ''
  process.stdin.on('data', piece => { text += piece }).on('end', () => resolve(text))
}))
const fetchImpl = (url, init = {}) =>
  fetch(url, { ...init, headers: { ...Object.fromEntries(new Headers(init.headers)), ...scenario.headers } })
const factory = scenario.binding === 'JSONRPC' ? new JsonRpcTransportFactory({ fetchImpl }) : new RestTransportFactory({ fetchImpl })
const client = await new ClientFactory(ClientFactoryOptions.createFrom(ClientFactoryOptions.default, {
  transports: [factory], preferredTransports: [scenario.binding],
  cardResolver: new DefaultAgentCardResolver({ fetchImpl }),
})).createFromUrl(scenario.url)

const items = []
let taskId
for (const turn of scenario.turns) {
  const part = turn.text === undefined ? { data: turn.data } : { text: turn.text }
  const message = { messageId: randomUUID(), role: 'ROLE_USER', parts: [part], contextId: turn.contextId ?? '' }
  if (turn.sameTask) message.taskId = taskId
  const request = SendMessageRequest.fromJSON({ message })
  const seen = []
  for await (const item of client.sendMessageStream(request)) {
    const json = StreamResponse.toJSON(item)
    taskId ??= json.task?.id
    seen.push(json)
  }
  items.push(seen)
}
const task = await client.getTask({ tenant: '', id: taskId })
process.stdout.write(JSON.stringify({ items, task: JSON.parse(JSON.stringify(task)) }))
process.exit(0)
