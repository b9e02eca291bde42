#!/usr/bin/env node
// Plays a scenario on the SDK's real Chat class against a hub and prints one JSON report.
//
//   node drive.mjs [--sdk 7|6] [scenario.json | '{"api": ..., "actions": [...]}']       the scenario may come on stdin
//   node drive.mjs [--sdk 7|6] --serve       a scenario on each line of stdin, its report on a line of stdout
//
// scenario: {api, id?, headers?, body?, messages?, auto?: tools|approvals|both, clientTools?: {name: output},
//            follows?: true to go on with messages that wait, maxRequests?, deadlineMs?, sdk7Frames?, actions: [{do, chat?, after?, wait?, cut?, ...}]}
// actions:  send {text, files?} · edit {text, messageId? | nth?} · regenerate {messageId? | nth?} · stop {how: both|server|client} ·
//           resume · reload {resume?} · open {as} (a second tab) · output {tool?, output | errorText} · approve {approved, reason?} ·
//           request {method, path, body?, name} · wait {for}
// after/for: {idle} {frames: n} {resumed: n} {text: true | words} {tool: state} {status} {messages: n} {data: type} {requests: n} {result: name} {ms}
// cut: {frames: n} loses the connection of the next response after n frames, as a browser does.
// report:   requests, responses (with frames), chats, results, stored (what the hub keeps), violations, failure?
// exit: 0 played to the end without violations, 1 otherwise, 2 bad usage.
import fs from 'node:fs';
import readline from 'node:readline';
import { judge, messageViolations } from './check.mjs';
import { loadSdk } from './chats.mjs';
import { Stage } from './actions.mjs';
import { Log } from './log.mjs';

function readArguments(argv) {
  let sdk = '7';
  let source;
  let serve = false;
  for (let i = 0; i < argv.length; i += 1) {
    if (argv[i] === '--sdk') sdk = argv[(i += 1)];
    else if (argv[i] === '--serve') serve = true;
    else source = argv[i];
  }
  if (serve) return { sdk, serve };
  const text = source === undefined ? fs.readFileSync(0, 'utf8') : source.trimStart().startsWith('{') ? source : fs.readFileSync(source, 'utf8');
  return { sdk, scenario: JSON.parse(text) };
}

/** What the grammar has to know about the request that a response answers. */
function context(request) {
  const messages = request.body?.messages ?? [];
  const named = messages.find(message => message.id === request.body?.messageId);
  const continued = named?.role === 'assistant' ? named : undefined;
  return {
    method: request.method,
    messageId: continued?.id,
    known: new Set((continued?.parts ?? []).flatMap(part => part.toolCallId ?? [])),
    used: new Set(messages.filter(message => message !== continued).map(message => message.id)),
  };
}

async function judgeResponses(log, scenario) {
  const violations = [];
  for (const response of log.responses) {
    const request = log.requests.find(one => one.n === response.n);
    if (response.status !== 200) continue;
    const cut = response.ended !== 'end';
    const verdict = await judge({ ...context(request), body: response.body, headers: response.headers, cut, sdk7: scenario.sdk7Frames });
    response.frames = verdict.frames;
    delete response.body;
    if (String(response.ended).startsWith('broken')) verdict.violations.push(`body: ${response.ended}`);
    violations.push(...verdict.violations.map(what => `response ${response.n}: ${what}`));
  }
  return violations;
}

async function judgeMessages(stage, stored) {
  const violations = await messageViolations(stored ?? [], 'the hub');
  for (const { name, chat } of stage.tabs.values()) violations.push(...(await messageViolations(chat.messages, `chat ${name}`)));
  return violations;
}

function describe({ chat, pending, cut, stopped, ...tab }) {
  const error = chat.error && { name: chat.error.name, message: chat.error.message.slice(0, 1000) };
  return { ...tab, status: chat.status, error, messages: chat.messages };
}

async function play({ sdk, scenario }) {
  const log = new Log(scenario.deadlineMs ?? 100_000);
  const stage = new Stage(await loadSdk(sdk), scenario, log);
  let failure;
  try {
    for (const action of scenario.actions) await stage.act(action);
    for (const tab of stage.tabs.values()) await stage.idle(tab);
  } catch (error) {
    failure = error.stack;
  }
  const stored = await stage.stored().catch(error => void (failure ??= error.stack));
  const violations = [...(await judgeResponses(log, scenario)), ...(await judgeMessages(stage, stored))];
  const chats = Object.fromEntries([...stage.tabs].map(([name, tab]) => [name, describe(tab)]));
  const report = { sdk, failure, violations, requests: log.requests, responses: log.responses, results: stage.results, chats, stored };
  const text = JSON.stringify(report);
  log.leave();
  return { text, code: failure || violations.length ? 1 : 0 };
}

let input;
try {
  input = readArguments(process.argv.slice(2));
} catch (error) {
  console.error(`drive: ${error.message}`);
  process.exit(2);
}
if (input.serve) {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { text } = await play({ sdk: input.sdk, scenario: JSON.parse(line) });
    process.stdout.write(`${text}\n`);
  }
} else {
  const { text, code } = await play(input);
  process.stdout.write(text, () => process.exit(code));
}
