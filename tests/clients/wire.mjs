// A fetch that writes down every request and response, shows frames as they pass, and can lose the connection as a browser does.

const SHOWN = ['content-type', 'cache-control', 'connection', 'x-vercel-ai-ui-message-stream', 'x-accel-buffering', 'retry-after'];

function shownHeaders(response) {
  return Object.fromEntries(SHOWN.flatMap(name => (response.headers.has(name) ? [[name, response.headers.get(name)]] : [])));
}

function parseBody(body) {
  try {
    return JSON.parse(body);
  } catch {
    return body;
  }
}

/** Where the first `count` data events of `text` end; -1 if there are fewer. */
function endOfEvents(text, count) {
  const boundary = /\r\n\r\n|\n\n|\r\r/g;
  let start = 0;
  for (let match; count > 0 && (match = boundary.exec(text)); start = boundary.lastIndex) {
    if (/^data:/m.test(text.slice(start, match.index))) count -= 1;
  }
  return count > 0 ? -1 : start;
}

function countFrames(text) {
  return (text.match(/^data:(?! ?\[DONE\])/gm) ?? []).length;
}

/** The response's body, read through a glass: `entry.body` holds what the client was given. */
function watched(response, entry, log, cut) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder('utf-8', { fatal: true });
  const finish = ended => {
    if (entry.ended) return;
    entry.ended = ended;
    entry.endedAt = Date.now();
    log.notify();
  };
  const lose = controller => {
    reader.cancel().catch(() => {});
    controller.error(new TypeError('network error'));
    finish('cut');
  };
  const pull = async controller => {
    if (entry.lost) return lose(controller);
    try {
      const { done, value } = await reader.read();
      if (entry.ended) return;
      if (done) return controller.close(), finish('end');
      pass(decoder.decode(value, { stream: true }), controller);
    } catch (error) {
      if (entry.ended) return;
      controller.error(error);
      finish(error.name === 'AbortError' ? 'aborted' : `broken: ${error.message}`);
    }
  };
  const pass = (text, controller) => {
    const all = entry.body + text;
    const end = cut ? endOfEvents(all, cut.frames) : -1;
    const given = end === -1 ? text : all.slice(entry.body.length, end);
    entry.lost = end !== -1;
    entry.body += given;
    entry.frameCount = countFrames(entry.body);
    controller.enqueue(new TextEncoder().encode(given));
    log.notify();
  };
  const cancel = why => (finish('aborted'), reader.cancel(why));
  return new ReadableStream({ pull, cancel }, { highWaterMark: 0 });
}

/** A fetch for one chat. `arm()` gives, once, what shall happen to the next response. */
export function loggingFetch(log, chat, { arm = () => undefined, maxRequests = 20 } = {}) {
  return async (url, init = {}) => {
    const number = log.requests.length + 1;
    if (number > maxRequests) throw new Error(`runaway: more than ${maxRequests} requests`);
    const request = { n: number, chat, at: Date.now(), method: init.method ?? 'GET', url: String(url), headers: { ...init.headers } };
    if (init.body != null) request.body = parseBody(init.body);
    log.requests.push(request);
    const cut = arm();
    let response;
    try {
      response = await fetch(url, { ...init, signal: AbortSignal.any([log.gone.signal, ...(init.signal ? [init.signal] : [])]) });
    } catch (error) {
      log.responses.push({ n: number, chat, at: Date.now(), ended: error.name === 'AbortError' ? 'aborted' : `failed: ${error.message}` });
      log.notify();
      throw error;
    }
    const entry = { n: number, chat, at: Date.now(), status: response.status, headers: shownHeaders(response), body: '', frameCount: 0 };
    log.responses.push(entry);
    log.notify();
    if (!response.body || response.status === 204) {
      entry.ended = 'end';
      return response;
    }
    return new Response(watched(response, entry, log, cut), { status: response.status, headers: response.headers });
  };
}
