// Lets the conformance suite run on Node 20: it imports `globSync`, which came with Node 22, and does not need it.
import { register } from "node:module";

const hooks = `
export async function resolve(specifier, context, next) {
  const suite = context.parentURL?.includes("/@modelcontextprotocol/conformance/");
  if (suite && (specifier === "fs" || specifier === "node:fs")) return { url: "shim:fs", shortCircuit: true };
  return next(specifier, context);
}
export async function load(url, context, next) {
  if (url !== "shim:fs") return next(url, context);
  const source = 'import fs from "node:fs"; export * from "node:fs"; export default fs;'
    + 'export const globSync = fs.globSync ?? (() => []);';
  return { format: "module", source, shortCircuit: true };
}`;
register("data:text/javascript," + encodeURIComponent(hooks));
