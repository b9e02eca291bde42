#!/usr/bin/env node
// Reads the documentation in a real browser: node docs.mjs CHROMIUM URL FOLDER. Prints what it saw as JSON.
import { chromium } from 'playwright-core';

const [browserPath, url, folder] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath: browserPath, args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'] });
const page = await browser.newPage({ colorScheme: 'light' });
const complaints = [];
const foreign = [];
page.on('pageerror', error => complaints.push(String(error)));
page.on('console', message => message.type() === 'error' && complaints.push(message.text()));
page.on('request', request => request.url().startsWith(url) || request.url().startsWith('data:') || foreign.push(request.url()));
page.setDefaultTimeout(100_000);

await page.goto(`${url}/docs`);
const tabs = await page.locator('.md-tabs__link').allTextContents();
const light = await page.locator('body').getAttribute('data-md-color-scheme');
await page.screenshot({ path: `${folder}/docs.png` });
// The page reads the field when a key comes up, when it gets the focus and when its index is ready. `fill` presses
// no key: where the index was ready before it, nothing was searched.
await page.locator('input.md-search__input').fill('reverse proxy nginx');
await page.locator('input.md-search__input').press('End');
await page.locator('.md-search-result__link').first().waitFor();
const hits = await page.locator('.md-search-result__link').evaluateAll(links => links.map(link => link.getAttribute('href')));
await page.goto(`${url}/docs/http.html`);
await page.emulateMedia({ colorScheme: 'dark' });
await page.waitForFunction(() => document.body.getAttribute('data-md-color-scheme') === 'slate');
await page.screenshot({ path: `${folder}/docs-dark.png` });
await page.goto(`${url}/docs/api`);
const reference = await page.title();
await browser.close();
console.log(JSON.stringify({ tabs: tabs.map(text => text.trim()), light, hits, reference, complaints, foreign }));
