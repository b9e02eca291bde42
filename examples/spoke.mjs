// A spoke in plain JavaScript: `node examples/spoke.mjs http://127.0.0.1:8000`, the key in DRAGOMAN_KEY.
// Node 22 and browsers have WebSocket; Node 20 wants `node --experimental-websocket`. See docs/spokes.md.
const [, , hub = "http://127.0.0.1:8000", id = `js-${process.pid}`] = process.argv;
const takes = (name, type) => ({ type: "object", properties: { [name]: { type } }, required: [name] });
const operations = [
  { namespace: "js", name: "reverse", effect: "read", description: "Reverse a text.", inputSchema: takes("text", "string") },
  { namespace: "js", name: "shout", effect: "read", description: "Reverse by the hub, loudly.", inputSchema: takes("text", "string") },
  { namespace: "js", name: "count", effect: "idempotent", description: "Count, slowly.", inputSchema: takes("to", "integer") },
];
const functions = {
  "js.reverse": ({ text }) => [...text].reverse().join(""),
  "js.shout": async ({ text }, call) => (await call.hub("js.reverse", { text })).toUpperCase(),
  "js.count": async ({ to }, call) => {
    for (let n = 1; n <= to && !call.signal.aborted; n++) {
      call.progress({ n });
      await new Promise((done) => setTimeout(done, 20));
    }
    return to;
  },
};
(function connect() {
  const socket = new WebSocket(`${hub.replace(/^http/, "ws")}/api/spoke`);
  const send = (type, fields) => socket.readyState === 1 && socket.send(JSON.stringify({ type, ...fields }));
  const running = new Map(), asked = new Map(); // the hub's calls by id; ours to the hub by id
  const serve = async ({ id, operation, input }) => {
    const stop = new AbortController(), { signal } = running.set(id, stop) && stop;
    const progress = (value) => send("progress", { id, value });
    const ask = (operation, input) => new Promise((resolve, reject) => {
      const subcall = crypto.randomUUID();
      asked.set(subcall, { resolve, reject });
      send("subcall", { id: subcall, parent: id, operation, input });
    });
    try {
      const result = (await functions[operation](input, { progress, hub: ask, signal })) ?? null;
      signal.aborted ? send("aborted", { id }) : send("result", { id, result });
    } catch (error) {
      send("error", { id, error: { code: "call_failed", message: String(error.message ?? error) } });
    }
    running.delete(id);
  };
  const end = (id, how, value) => { asked.get(id)?.[how](value); asked.delete(id); };
  const hear = {
    welcome: () => send("register", { id: "all", all: true, operations }),
    registered: (frame) => console.log("registered", frame.operations, frame.refused ?? ""),
    refused: (frame) => { throw new Error(frame.error.message); },
    call: serve,
    abort: (frame) => running.has(frame.id) ? running.get(frame.id).abort() : send("aborted", { id: frame.id }),
    result: (frame) => end(frame.id, "resolve", frame.result),
    error: (frame) => end(frame.id, "reject", new Error(frame.error.message)),
    aborted: (frame) => end(frame.id, "reject", new Error("stopped")),
    ping: (frame) => send("pong", { n: frame.n }),
  };
  socket.onopen = () => send("hello", { protocol: 1, id, name: "js", token: process.env.DRAGOMAN_KEY });
  socket.onmessage = ({ data }) => { const frame = JSON.parse(data); hear[frame.type]?.(frame); };
  socket.onclose = socket.onerror = () => { // Node 20 tells of a refused connection by an error only
    socket.onclose = socket.onerror = null;
    for (const each of running.values()) each.abort();
    setTimeout(connect, 500 + Math.random() * 1000);
  };
})();
