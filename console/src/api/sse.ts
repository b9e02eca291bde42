/** Server-sent events over fetch: the frames of a response, however its bytes are cut. */
export interface Frame {
  id: string | null;
  data: string;
}

/** Yield the frames of a body. Comments are left out; they only show that the connection lives. */
export async function* readFrames(body: ReadableStream<Uint8Array>, signal?: AbortSignal): AsyncGenerator<Frame[]> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const stop = () => void reader.cancel().catch(() => undefined);
  signal?.addEventListener("abort", stop);
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n");
      rest = blocks.pop() ?? "";
      const frames = blocks.map(parseFrame).filter((frame) => frame !== null);
      if (frames.length > 0) yield frames;
    }
  } finally {
    signal?.removeEventListener("abort", stop);
    stop();
  }
}

function parseFrame(block: string): Frame | null {
  let id: string | null = null;
  const data: string[] = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
    else if (line.startsWith("id:")) id = line.slice(3).trim();
  }
  return data.length === 0 ? null : { id, data: data.join("\n") };
}
