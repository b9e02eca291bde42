// Judges response bodies, a line of stdin with a list of them after the other: headers, SSE framing, the SDK's own schemas (7, and 6.0.1 that takes no extra keys), grammar.
//   echo '[{"body": "data: {...}\n\n", "method": "GET"}]' | node check.mjs     prints one list of violations for each body
import readline from 'node:readline';
import { pathToFileURL } from 'node:url';
import { uiMessageChunkSchema as schema7, safeValidateUIMessages as validate7 } from 'ai';
import { safeValidateUIMessages as validate6 } from 'ai6';
import { uiMessageChunkSchema as schema601 } from 'ai601';
import { Grammar } from './grammar.mjs';

const HEADERS = {
  'content-type': /^text\/event-stream\b/,
  'cache-control': /\bno-cache\b/,
  'x-vercel-ai-ui-message-stream': /^v1$/,
  'x-accel-buffering': /^no$/,
};
const FREE_KEYS = new Set(['type', 'input', 'output', 'data', 'messageMetadata', 'approvalDescriptor', 'inputSchemaInput', 'citations']);

export function headerViolations(headers) {
  const wrong = Object.entries(HEADERS).filter(([name, wanted]) => !wanted.test(headers[name] ?? ''));
  const said = wrong.map(([name]) => `headers: ${name} is ${JSON.stringify(headers[name] ?? null)}`);
  if (/close/i.test(headers.connection ?? '')) said.push('headers: connection is "close"');
  return said;
}

/** Splits a body into the data of its events, noting what a client would drop or choke on. */
export function splitEvents(body, { whole = true } = {}) {
  const violations = [];
  const events = body.replace(/\r\n?/g, '\n').split('\n\n');
  const rest = events.pop();
  if (whole && rest.trim()) violations.push(`framing: no blank line after the last event ${JSON.stringify(rest.slice(0, 100))}`);
  const data = [];
  for (const event of events) {
    const lines = event.split('\n').filter(line => line && !line.startsWith(':'));
    const strange = lines.find(line => !line.startsWith('data:'));
    if (strange) violations.push(`framing: a line that is neither data nor a comment: ${JSON.stringify(strange.slice(0, 100))}`);
    const said = lines.filter(line => line.startsWith('data:')).map(line => line.slice(5).replace(/^ /, ''));
    if (said.length) data.push(said.join('\n'));
  }
  return { data, violations };
}

function parse(text, violations) {
  try {
    const frame = JSON.parse(text);
    if (/"__proto__"\s*:/.test(text)) violations.push(`json: a key __proto__ in ${text.slice(0, 120)}`);
    if (typeof frame?.type === 'string') return frame;
  } catch {}
  violations.push(`json: not a frame: ${JSON.stringify(text.slice(0, 120))}`);
  return undefined;
}

/** Keys of a frame that ai 7 does not name: it takes a function as the value of an unknown key only. */
async function strangeKeys(frame) {
  const strange = [];
  for (const key of Object.keys(frame).filter(key => !FREE_KEYS.has(key))) {
    const probe = await schema7().validate({ ...frame, [key]: () => {} });
    if (probe.success) strange.push(key);
  }
  return strange;
}

function reason(error) {
  const issues = error.cause?.issues ?? error.issues ?? [];
  for (const issue of issues) {
    const branch = (issue.errors ?? []).find(list => !list.some(i => i.path.length === 1 && i.path[0] === 'type'));
    if (branch) return branch.map(i => `${i.path.join('.') || 'frame'}: ${i.message}`).join('; ');
  }
  return issues.length ? 'a type that the schema does not know' : String(error.message).slice(0, 200);
}

export async function schemaViolations(frame, { sdk7 = false } = {}) {
  const said = [];
  const seven = await schema7().validate(frame);
  if (!seven.success) said.push(`schema of ai 7: ${reason(seven.error)}`);
  if (sdk7) {
    const strange = await strangeKeys(frame);
    if (strange.length) said.push(`keys that ai 7 does not name: ${strange.join(', ')}`);
  } else {
    const strict = await schema601().validate(frame);
    if (!strict.success) said.push(`strict schema of ai 6.0.1: ${reason(strict.error)}`);
  }
  return said.map(what => `${what} (${JSON.stringify(frame).slice(0, 200)})`);
}

/** All that is wrong with one body. `cut`: this side ended it early, so its end is not judged. */
export async function judge({ body, cut = false, sdk7 = false, headers, ...context }) {
  const { data, violations } = splitEvents(body, { whole: !cut });
  if (headers) violations.push(...headerViolations(headers));
  const done = data.indexOf('[DONE]');
  if (!cut && done !== data.length - 1) violations.push('framing: the last event is not data: [DONE]');
  if (done !== -1 && done < data.length - 1) violations.push('framing: an event after [DONE]');
  const grammar = new Grammar(context);
  const frames = [];
  for (const text of data.filter(text => text !== '[DONE]')) {
    const frame = parse(text, violations);
    if (!frame) continue;
    frames.push(frame);
    violations.push(...(await schemaViolations(frame, { sdk7 })));
    grammar.read(frame);
  }
  if (!cut) grammar.end();
  return { frames, violations: [...violations, ...grammar.violations] };
}

/** What the SDK's own validation says about messages, in both versions. */
export async function messageViolations(messages, whose) {
  if (!messages.length) return [];
  const said = [];
  const plain = JSON.parse(JSON.stringify(messages));
  for (const [version, validate] of [[7, validate7], [6, validate6]]) {
    const verdict = await validate({ messages: plain });
    if (!verdict.success) said.push(`messages of ${whose} fail validateUIMessages of ai ${version}: ${String(verdict.error.message).slice(0, 400)}`);
  }
  const ids = plain.map(message => message.id);
  if (new Set(ids).size < ids.length) said.push(`messages of ${whose}: an id appears twice: ${ids.join(', ')}`);
  const calls = plain.flatMap(message => message.parts.flatMap(part => part.toolCallId ?? []));
  if (new Set(calls).size < calls.length) said.push(`messages of ${whose}: a tool call appears twice: ${calls.join(', ')}`);
  return said;
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const verdicts = [];
    for (const one of JSON.parse(line)) verdicts.push((await judge({ ...one, known: new Set(one.known), used: new Set(one.used) })).violations);
    process.stdout.write(`${JSON.stringify(verdicts)}\n`);
  }
}
