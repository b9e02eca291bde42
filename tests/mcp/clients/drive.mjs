// Plays the official TypeScript clients against a hub: `node drive.mjs v1|v2|v2-modern URL`; prints what they saw as JSON.
const [which, url] = process.argv.slice(2);
const wide = "@modelcontextprotocol/";
const sdk = which === "v1"
  ? { ...(await import(`${wide}sdk/client/index.js`)), ...(await import(`${wide}sdk/client/streamableHttp.js`)) }
  : await import(`${wide}client`);

const asked = [];
const options = { capabilities: { elicitation: { form: {} } } };
if (which === "v2-modern") options.versionNegotiation = { mode: { pin: "2026-07-28" } };
const client = new sdk.Client({ name: `test-${which}`, version: "1" }, options);
const answer = async (request) => {
  asked.push(request.params.message);
  return { action: "accept", content: { approve: true } };
};
if (which === "v1") {
  const { ElicitRequestSchema } = await import(`${wide}sdk/types.js`);
  client.setRequestHandler(ElicitRequestSchema, answer);
} else {
  client.setRequestHandler("elicitation/create", answer);
}
await client.connect(new sdk.StreamableHTTPClientTransport(new URL(url)));

const call = (tool, input, options) => {
  const params = { name: "hub_call", arguments: { calls: [{ tool, input }] } };
  return which === "v1" ? client.callTool(params, undefined, options) : client.callTool(params, options);
};
const progress = [];
const { tools } = await client.listTools();
const added = await call("math.add", { a: 1, b: 2 });
const wrong = await call("math.add", { a: "x" });
const counted = await call("time.count", {}, { onprogress: (note) => progress.push(note.message) });
const wiped = await call("disk.wipe", { path: "/" });
const stop = new AbortController();
const hanging = call("time.hang", {}, {
  signal: stop.signal,
  onprogress: () => stop.abort(),
});
const stopped = await hanging.then(() => "ended", () => "stopped");
console.log(JSON.stringify({
  tools: tools.map((tool) => tool.name),
  instructions: client.getInstructions() ?? "",
  added: added.structuredContent,
  wrong: { isError: wrong.isError, text: wrong.content[0].text },
  counted: counted.structuredContent,
  progress,
  wiped: wiped.structuredContent,
  asked,
  stopped,
}));
await client.close();
