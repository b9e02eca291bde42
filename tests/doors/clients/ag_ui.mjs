// Plays conversations with the stock AG-UI clients and prints what they made of each, a line of JSON for a line of stdin:
// {version, url, headers, threadId, tools, turns: [{say|result|resume|again, context, state, abortAfter}]}
import { randomUUID } from 'node:crypto'
import { createInterface } from 'node:readline'

function openCalls(agent, scenario) {
  const done = new Set(agent.messages.filter(message => message.role === 'tool').map(message => message.toolCallId))
  const names = new Set((scenario.tools ?? []).map(tool => tool.name))
  return agent.messages.flatMap(message => message.toolCalls ?? [])
    .filter(call => names.has(call.function.name) && !done.has(call.id))
}

async function play(scenario) {
  const { HttpAgent } = await import(scenario.version === '1' ? '@ag-ui/client' : 'ag-ui-client-before-1')
  const warnings = []
  console.warn = console.error = console.log = (...words) => warnings.push(words.map(String).join(' '))
  const agent = new HttpAgent({
    url: scenario.url, headers: scenario.headers ?? {}, threadId: scenario.threadId,
    initialMessages: scenario.messages ?? [], initialState: scenario.state ?? {},
  })
  const runs = []
  for (const turn of scenario.turns) {
    const input = { tools: scenario.tools ?? [], context: turn.context ?? [] }
    if (turn.forwarded) input.forwardedProps = turn.forwarded
    if (turn.result !== undefined) {
      for (const call of openCalls(agent, scenario)) {
        agent.addMessage({ id: randomUUID(), role: 'tool', toolCallId: call.id, content: turn.result })
      }
    }
    if (turn.resume) {
      const pending = agent.pendingInterrupts ?? runs.at(-1).interrupts
      input.resume = pending.map(each => ({ interruptId: each.id, ...turn.resume }))
    }
    if (turn.say !== undefined) agent.addMessage({ id: turn.id ?? randomUUID(), role: 'user', content: turn.say })
    const run = { events: [], interrupts: [], error: null, failed: null }
    if (turn.state !== undefined) agent.setState(turn.state)
    let characters = 0
    try {
      await agent.runAgent(input, {
        onEvent: ({ event }) => {
          run.events.push(event)
          if (event.type === 'TEXT_MESSAGE_CONTENT') characters += event.delta.length
          if (turn.abortAfter !== undefined && characters >= turn.abortAfter) agent.abortRun()
        },
        onRunErrorEvent: ({ event }) => { run.error = { message: event.message, code: event.code } },
        onRunFinishedEvent: ({ event }) => { run.interrupts = event.outcome?.interrupts ?? [] },
      })
    } catch (error) {
      run.failed = String(error?.message ?? error)
    }
    run.state = structuredClone(agent.state)
    runs.push(run)
  }
  return { runs, messages: agent.messages, state: agent.state, warnings }
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(await play(JSON.parse(line)))}\n`)
}
