#!/usr/bin/env node
// Bundles the page for one SDK version: node page/build.mjs 7|6 FOLDER
import fs from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';

const here = path.dirname(fileURLToPath(import.meta.url));
const [version, folder] = process.argv.slice(2);
await build({
  entryPoints: [path.join(here, 'main.jsx')],
  outfile: path.join(folder, 'page.js'),
  alias: version === '6' ? { ai: 'ai6', '@ai-sdk/react': 'react6' } : {},
  bundle: true,
  format: 'esm',
  jsx: 'automatic',
  define: { SDK: JSON.stringify(version), 'process.env.NODE_ENV': '"production"' },
  logLevel: 'error',
});
fs.copyFileSync(path.join(here, 'index.html'), path.join(folder, 'index.html'));
