// After the build: compress every file beside itself, and fail when the first load is too large.
import { readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";

const STATIC = new URL("../../src/dragoman/server/console/static/", import.meta.url).pathname;
const MAX_FIRST_LOAD = 220 * 1024; // bytes of JavaScript, gzip
const MAX_ALL = 1024 * 1024; // bytes of everything in the wheel, uncompressed files and their gzip and brotli

const manifest = JSON.parse(readFileSync(join(STATIC, ".vite/manifest.json"), "utf8"));
rmSync(join(STATIC, ".vite"), { recursive: true });

const assets = join(STATIC, "assets");
const sizes = new Map();
let all = 0;
for (const name of readdirSync(assets).sort()) {
  const content = readFileSync(join(assets, name));
  all += content.length;
  if (!/\.(js|css|svg)$/.test(name)) continue;
  const gzip = gzipSync(content, { level: 9 });
  const brotli = brotliCompressSync(content, { params: { [constants.BROTLI_PARAM_QUALITY]: 11 } });
  sizes.set(`assets/${name}`, gzip.length);
  writeFileSync(join(assets, `${name}.gz`), gzip);
  writeFileSync(join(assets, `${name}.br`), brotli);
  all += gzip.length + brotli.length;
}

// What a browser loads before it shows the chat: the entry, what it imports, and the screen of the chat.
const FIRST = ["index.html", "src/screens/chat/index.tsx"];
const first = new Set();
const visit = (key) => {
  const chunk = manifest[key];
  if (chunk === undefined || first.has(chunk.file)) return;
  first.add(chunk.file);
  for (const each of chunk.imports ?? []) visit(each);
};
FIRST.forEach(visit);
const load = [...first].filter((file) => file.endsWith(".js")).reduce((sum, file) => sum + sizes.get(file), 0);
const kb = (bytes) => `${(bytes / 1024).toFixed(1)} kB`;
console.log(`console: first load ${kb(load)} of JavaScript (gzip), at most ${kb(MAX_FIRST_LOAD)}; all files ${kb(all)}`);
if (load > MAX_FIRST_LOAD) {
  console.error("console: the first load is too large; load the new part lazily");
  process.exit(1);
}
if (all > MAX_ALL * 2) {
  console.error(`console: all files together are too large, at most ${kb(MAX_ALL * 2)}`);
  process.exit(1);
}
