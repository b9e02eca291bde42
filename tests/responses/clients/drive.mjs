// Conversations of real clients with the hub. Each line of stdin is a task, answered by a line with what came of it.
// {client: ai6 | ai7 | agents, url, key, model, prompts, stream, settings}
import { createInterface } from "node:readline";
import { z } from "zod";

const weather = ({ city }) => `${city}: 3 degrees`;

async function aiSdk(task, report) {
  const version = task.client;
  const ai = await import(version);
  const { createOpenAI } = await import(version.replace("ai", "openai"));
  const model = createOpenAI({ baseURL: `${task.url}/v1`, apiKey: task.key }).responses(task.model);
  const tools = {
    weather: ai.tool({
      description: "The weather.",
      inputSchema: z.object({ city: z.string() }),
      execute: async (input) => weather(input),
    }),
  };
  const messages = [];
  for (const prompt of task.prompts) {
    messages.push({ role: "user", content: prompt });
    const common = { model, messages, tools, stopWhen: ai.stepCountIs(5), ...task.settings };
    const result = task.stream
      ? ai.streamText({ ...common, onError: ({ error }) => report.errors.push(String(error)) })
      : await ai.generateText(common);
    if (task.stream) await result.consumeStream();
    messages.push(...((await result.responseMessages) ?? (await result.response).messages));
    const steps = await result.steps;
    report.turns.push({
      text: await result.text,
      steps: steps.length,
      finish: await result.finishReason,
      usage: await result.usage,
      calls: steps.flatMap((step) =>
        step.toolCalls.map((call) => [call.toolName, call.input, Boolean(call.providerExecuted)]),
      ),
    });
  }
}

async function agents(task, report) {
  const { Agent, OpenAIProvider, Runner, setTracingDisabled, tool } = await import("@openai/agents");
  setTracingDisabled(true);
  const agent = new Agent({
    name: "helper",
    instructions: "Be brief.",
    model: task.model,
    tools: [
      tool({
        name: "weather",
        description: "The weather.",
        parameters: z.object({ city: z.string() }),
        execute: async (input) => weather(input),
      }),
    ],
  });
  const provider = new OpenAIProvider({ baseURL: `${task.url}/v1`, apiKey: task.key, useResponses: true });
  const runner = new Runner({ modelProvider: provider });
  let input = [];
  for (const prompt of task.prompts) {
    input.push({ role: "user", content: prompt });
    const result = await runner.run(agent, input, { stream: task.stream, maxTurns: 5 });
    if (task.stream) {
      for await (const _ of result);
      await result.completed;
    }
    input = result.history;
    report.turns.push({
      text: result.finalOutput,
      steps: result.rawResponses.length,
      usage: result.rawResponses.at(-1).usage,
      calls: result.newItems
        .filter((item) => item.type === "tool_call_item")
        .map((item) => [item.rawItem.name, item.rawItem.arguments, item.rawItem.type !== "function_call"]),
    });
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const task = JSON.parse(line);
  const report = { turns: [], errors: [] };
  try {
    await (task.client === "agents" ? agents(task, report) : aiSdk(task, report));
  } catch (error) {
    report.errors.push(String(error));
  }
  process.stdout.write(`${JSON.stringify(report)}\n`);
}
