// Conversations of real clients with the hub. Each line of stdin is a task, answered by a line with what came of it.
// {client: ai6 | ai7 | agents, package: responses | chat | compatible | anthropic, url, key, model, prompts, stream, settings,
//  format: whether the answer is an object, abort: whether to leave at the first text}
import { createInterface } from "node:readline";
import { z } from "zod";

const weather = ({ city }) => `${city}: 3 degrees`;
const OBJECT = z.object({ city: z.string(), degrees: z.number() });
const PACKAGES = {
  responses: ["openai", "createOpenAI", (provider, model) => provider.responses(model)],
  chat: ["openai", "createOpenAI", (provider, model) => provider.chat(model)],
  compatible: ["compatible", "createOpenAICompatible", (provider, model) => provider.chatModel(model)],
  anthropic: ["anthropic", "createAnthropic", (provider, model) => provider(model)],
};

async function makeModel(task) {
  const [name, create, choose] = PACKAGES[task.package ?? "responses"];
  const module = await import(task.client.replace("ai", name));
  const settings = { name: "hub", baseURL: `${task.url}/v1`, apiKey: task.key };
  const provider = module[create]({ ...settings, includeUsage: true, supportsStructuredOutputs: true });
  return choose(provider, task.model);
}

async function aiSdk(task, report) {
  const ai = await import(task.client);
  const tools = {
    weather: ai.tool({
      description: "The weather.",
      inputSchema: z.object({ city: z.string() }),
      execute: async (input) => weather(input),
    }),
  };
  const leave = new AbortController();
  const shared = {
    model: await makeModel(task),
    stopWhen: ai.stepCountIs(5),
    abortSignal: leave.signal,
    ...(task.format ? { output: ai.Output.object({ schema: OBJECT }) } : { tools }),
    ...task.settings,
  };
  const messages = [];
  for (const prompt of task.prompts) {
    messages.push({ role: "user", content: prompt });
    const common = { ...shared, messages };
    const result = task.stream
      ? ai.streamText({ ...common, onError: ({ error }) => report.errors.push(describe(error)) })
      : await ai.generateText(common);
    if (task.abort) {
      for await (const text of result.textStream) {
        report.turns.push({ text });
        leave.abort();
      }
      return;
    }
    if (task.stream) await result.consumeStream();
    messages.push(...((await result.responseMessages) ?? (await result.response).messages));
    const steps = await result.steps;
    report.turns.push({
      text: await result.text,
      object: task.format ? await result.output : null,
      reasoning: steps.map((step) => step.reasoningText ?? "").join(""),
      warnings: steps.flatMap((step) => step.warnings ?? []),
      steps: steps.length,
      finish: await result.finishReason,
      usage: await result.usage,
      calls: steps.flatMap((step) =>
        step.toolCalls.map((call) => [call.toolName, call.input, Boolean(call.providerExecuted)]),
      ),
    });
  }
}

// An error as text, with the status of the response.
function describe(error) {
  const cause = error?.lastError ?? error;
  return cause?.statusCode ? `${cause.statusCode} ${cause}` : String(cause);
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
    report.errors.push(describe(error));
  }
  process.stdout.write(`${JSON.stringify(report)}\n`);
}
