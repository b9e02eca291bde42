/** What a call gave: its status, its result with images as images, or its error with every problem. */
import { Link } from "wouter";
import { Details, JsonView, Status } from "../../components";
import type { Outcome } from "./types";

interface Picture {
  data: string;
  mimeType: string;
}

const PICTURES = /^image\/(png|jpeg|gif|webp)$/;
const MAX_PICTURES = 12;

export function Result({ outcome, seconds }: { outcome: Outcome; seconds: number }) {
  const pictures = outcome.success ? findPictures(outcome.result) : [];
  const { error } = outcome;
  return (
    <section className="operations-result" aria-label="Result">
      <div className="operations-result-head">
        <Status status={outcome.status} />
        <span className="muted small num">{seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(2)} s`}</span>
        <Link href={`/runs/${encodeURIComponent(outcome.callId)}`} className="small">
          Open the call
        </Link>
      </div>
      {outcome.status === "pending" && (
        <p>
          It waits for approval, and has not run. <Link href="/inbox">Answer it in the inbox</Link>; then run it again with the same
          input.
        </p>
      )}
      {error !== undefined && outcome.status !== "pending" && (
        <div className="operations-error">
          <p>
            <b>{error.message}</b>
          </p>
          {error.hint != null && <p className="muted small">{error.hint}</p>}
          {error.problems !== undefined && error.problems.length > 0 && (
            <Details rows={error.problems.map((each) => [each.path || "input", `expected ${each.expected}, got ${each.got}`])} />
          )}
          <p className="muted small mono">{error.code}</p>
        </div>
      )}
      {pictures.slice(0, MAX_PICTURES).map((picture, at) => (
        <img key={at} className="operations-picture" alt={`Picture ${at + 1} of the result`} src={`data:${picture.mimeType};base64,${picture.data}`} />
      ))}
      {outcome.success && <JsonView value={outcome.result ?? null} label="Result" />}
      {outcome.notes?.map((note) => (
        <p key={note} className="muted small">
          {note}
        </p>
      ))}
    </section>
  );
}

/** The pictures in a result: blocks of the shape that MCP has for them, at any depth. */
export function findPictures(value: unknown, depth = 0): Picture[] {
  if (depth > 6 || typeof value !== "object" || value === null) return [];
  if (Array.isArray(value)) return value.slice(0, 100).flatMap((each) => findPictures(each, depth + 1));
  const block = value as Record<string, unknown>;
  const { type, data, mimeType } = block;
  if (type === "image" && typeof data === "string" && typeof mimeType === "string" && PICTURES.test(mimeType)) return [{ data, mimeType }];
  return Object.values(block).flatMap((each) => findPictures(each, depth + 1));
}
