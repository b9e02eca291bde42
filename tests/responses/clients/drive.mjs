// One conversation of a real client with the hub. The task is JSON in argv[2]; what came of it is JSON on stdout.
// {client: ai6 | ai7 | agents, url, key, model, prompts, stream, settings}
import { z } from "zod";

const task = JSON.parse(process.argv[2]);
const baseURL = `${task.url}/v1`;
const report = { turns: [], errors: [] };
const weather = ({ city }) => `${city}: 3 degrees`;

async function aiSdk(version) {
  const ai = await import(version);
  const { createOpenAI } = await import(version.replace("ai", "openai"));
  const model = createOpenAI({ baseURL, apiKey: task.key }).responses(task.model);
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

async function agents() {
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
  const runner = new Runner({ modelProvider: new OpenAIProvider({ baseURL, apiKey: task.key, useResponses: true }) });
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

try {
  await (task.client === "agents" ? agents() : aiSdk(task.client));
} catch (error) {
  report.errors.push(String(error));
}
console.log(JSON.stringify(report));
process.exit(0);
