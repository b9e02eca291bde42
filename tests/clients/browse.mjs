#!/usr/bin/env node
// Uses the chat page in a real browser, whose program is the argument, as a person would. Each line of stdin is a script,
// played in a profile of its own, and each line of stdout its report, as JSON:
// {url, deadlineMs?, actions: [{do, ...}]}
// actions: say {text} · press {button} · reload · see {text} · status {is} · lost {is} · shoot {path} · request {method, url}
import readline from 'node:readline';
import { chromium } from 'playwright-core';

const FLAGS = [
  '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
  '--disable-component-update', '--disable-sync', '--disable-dev-shm-usage',
];

const ACTIONS = {
  async say(page, { text }) {
    await page.getByLabel('Message').fill(text);
    await page.getByRole('button', { name: 'Send' }).click();
  },
  press: (page, { button }) => page.getByRole('button', { name: button }).click(),
  reload: page => page.reload({ waitUntil: 'load' }),
  see: (page, { text }) => page.locator('[data-role="assistant"]').filter({ hasText: text }).last().waitFor(),
  status: (page, { is }) => page.locator('#status').and(page.getByText(is, { exact: true })).waitFor(),
  lost: (page, { is }) => page.locator('#lost').and(page.getByText(String(is), { exact: true })).waitFor(),
  shoot: (page, { path }) => page.screenshot({ path, fullPage: true }),
  request: (page, { method, url }) => fetch(url, { method }).then(response => response.arrayBuffer()),
};

/** Writes down what the page asks for and complains about. */
function listen(page) {
  const heard = { requests: [], complaints: [] };
  const note = (request, status) => {
    const { pathname } = new URL(request.url());
    if (pathname.startsWith('/api/')) heard.requests.push({ method: request.method(), path: pathname, status });
  };
  page.on('response', response => note(response.request(), response.status()));
  page.on('requestfailed', request => note(request, request.failure()?.errorText));
  page.on('pageerror', error => heard.complaints.push(String(error)));
  page.on('console', message => {
    const known = message.text().startsWith('Failed to load resource'); // it stands among the requests
    if (message.type() === 'error' && !known) heard.complaints.push(message.text());
  });
  return heard;
}

/** What a person sees. */
function look() {
  const part = node => ({ kind: node.dataset.kind, state: node.dataset.state, text: node.textContent });
  const message = node => ({ id: node.dataset.id, role: node.dataset.role, parts: [...node.children].map(part) });
  const text = selector => document.querySelector(selector)?.textContent;
  return { messages: [...document.querySelectorAll('article')].map(message), status: text('#status'), lost: text('#lost'), error: text('#error') };
}

async function use(browser, script) {
  const context = await browser.newContext();
  const page = await context.newPage();
  page.setDefaultTimeout(script.deadlineMs ?? 100_000);
  const heard = listen(page);
  let failure;
  try {
    await page.goto(script.url);
    for (const action of script.actions) await ACTIONS[action.do](page, action);
  } catch (error) {
    failure = String(error.stack);
  }
  const seen = await page.evaluate(look).catch(error => ({ failure: String(error) }));
  await context.close();
  return { failure, ...seen, ...heard };
}

const browser = await chromium.launch({ executablePath: process.argv[2], headless: true, args: FLAGS });
for await (const line of readline.createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(await use(browser, JSON.parse(line)))}\n`);
}
await browser.close();
