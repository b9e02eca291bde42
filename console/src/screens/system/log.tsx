/** The last log lines. While it follows, it asks for what came since when an event says that lines were logged. */
import { useEffect, useRef, useState } from "react";
import { VList, type VListHandle } from "virtua";
import { api } from "../../api/client";
import { useEvents } from "../../api/events";
import { Button, Chip, Empty, ErrorNotice, Filter, SearchField, useKeys, useUrlState, type Tone } from "../../components";
import type { LogAnswer, LogLine } from "./types";

const MAX_LINES = 2_000;
const TONES: Record<LogLine["level"], Tone> = { debug: "muted", info: "muted", warning: "wait", error: "bad" };

export function Log() {
  const [params] = useUrlState();
  const level = params.get("level") ?? "";
  const text = params.get("q") ?? "";
  const [follow, setFollow] = useState(true);
  const { lines, error, ready, retry } = useLines(level, text, follow);
  const list = useRef<VListHandle>(null);
  useKeys("Log", { l: [follow ? "stop following" : "follow", () => setFollow(!follow)] });
  useEffect(() => {
    if (follow && lines.length > 0) list.current?.scrollToIndex(lines.length - 1, { align: "end" });
  }, [lines, follow]);
  return (
    <div className="system-log">
      <div className="toolbar">
        <SearchField placeholder="Text or logger" />
        <Filter
          name="level"
          label="Level"
          choices={[
            ["", "all levels"],
            ["info", "info and above"],
            ["warning", "warnings and errors"],
            ["error", "errors"],
          ]}
        />
        <Button icon={follow ? "stop" : "play"} aria-pressed={follow} onClick={() => setFollow(!follow)}>
          {follow ? "Following" : "Follow"}
        </Button>
      </div>
      {error !== null && (
        <div className="pad">
          <ErrorNotice error={error} onRetry={retry} />
        </div>
      )}
      {error === null && ready && lines.length === 0 && (
        <Empty icon="system" title={level !== "" || text !== "" ? "No lines match" : "Nothing is logged yet"}>
          <p>
            The last 2,000 lines of this process are here, from the level that <code>dragoman serve --log-level</code> lets
            through. Secrets are redacted.
          </p>
        </Empty>
      )}
      {lines.length > 0 && (
        <div className="system-lines" role="log" aria-label="Log">
          <VList ref={list} data={lines} tabIndex={0} aria-label="Lines">
            {(line) => <Line key={line.number} line={line} />}
          </VList>
        </div>
      )}
    </div>
  );
}

function Line({ line }: { line: LogLine }) {
  const fields = Object.entries(line.fields ?? {})
    .map(([name, value]) => `${name}=${value}`)
    .join(" ");
  return (
    <div className="system-line">
      <time className="muted" dateTime={new Date(line.time * 1000).toISOString()}>
        {new Date(line.time * 1000).toLocaleTimeString(undefined, { hour12: false })}
      </time>
      <Chip tone={TONES[line.level]}>{line.level}</Chip>
      <span className="system-message">
        <span className="muted">{line.logger}</span> {line.message} {fields !== "" && <span className="muted">{fields}</span>}
      </span>
    </div>
  );
}

function useLines(level: string, text: string, follow: boolean) {
  const [lines, setLines] = useState<LogLine[]>([]);
  const [error, setError] = useState<unknown>(null);
  const [ready, setReady] = useState(false);
  const [attempt, setAttempt] = useState(0);
  const ask = useRef<() => void>(() => undefined);
  const place = useRef<{ last: number; ring: string } | null>(null);
  useEffect(() => {
    place.current = null;
    setLines([]);
    setReady(false);
    setError(null);
  }, [level, text, attempt]);
  useEffect(() => {
    const controller = new AbortController();
    const read = async () => {
      const since = place.current?.last ?? 0;
      const query = { since, level, text, limit: since === 0 ? 500 : 1000 };
      const answer = await api.get<LogAnswer>("/api/logs", { query, signal: controller.signal });
      const isNew = place.current !== null && place.current.ring !== answer.ring;
      place.current = { last: isNew ? 0 : answer.last, ring: answer.ring };
      setReady(true);
      setError(null);
      if (isNew || since === 0) setLines(isNew ? [] : answer.lines);
      else if (answer.lines.length > 0) setLines((now) => [...now, ...answer.lines].slice(-MAX_LINES));
    };
    let reading = Promise.resolve(); // one at a time: each asks for what came since the one before
    ask.current = () => {
      reading = reading.then(read).catch((failed: unknown) => void (!controller.signal.aborted && setError(failed)));
    };
    if (place.current === null || follow) ask.current();
    return () => controller.abort();
  }, [level, text, follow, attempt]);
  useEvents("log.", () => follow && ask.current());
  return { lines, error, ready, retry: () => setAttempt((now) => now + 1) };
}
