/** Make a call again with another input. */
import { useEffect, useState } from "react";
import { useLocation } from "wouter";
import { api } from "../../api/client";
import { Button, Dialog, ErrorNotice, JsonView, Status } from "../../components";
import type { CallDetails } from "./types";

interface Outcome {
  callId: string;
  status: string;
  success: boolean;
  result?: unknown;
  error?: { message: string; hint?: string | null; problems?: { path: string; expected: string; got: string }[] };
}

export function CallAgain({ call, open, onClose }: { call: CallDetails; open: boolean; onClose: () => void }) {
  const [text, setText] = useState("");
  const [busy, setBusy] = useState(false);
  const [outcome, setOutcome] = useState<Outcome | null>(null);
  const [failure, setFailure] = useState<unknown>(null);
  const [, go] = useLocation();
  useEffect(() => {
    if (!open) return;
    setText(JSON.stringify(call.input ?? {}, null, 2));
    setOutcome(null);
    setFailure(null);
  }, [open, call.id]);
  const problem = jsonProblem(text);
  const run = async () => {
    setBusy(true);
    setFailure(null);
    setOutcome(null);
    try {
      setOutcome(await api.post<Outcome>(`/api/operations/${encodeURIComponent(call.operation)}/call`, JSON.parse(text)));
    } catch (error) {
      setFailure(error);
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog
      open={open}
      onClose={onClose}
      title={`Call ${call.operation} again`}
      actions={
        <>
          {outcome !== null && (
            <Button
              onClick={() => {
                onClose();
                go(`/runs/${outcome.callId}`);
              }}
            >
              Open the call
            </Button>
          )}
          <Button look="primary" icon="play" busy={busy} disabled={problem !== null} onClick={() => void run()}>
            Call
          </Button>
        </>
      }
    >
      <p className="muted small">
        It runs for you, outside of the run{call.effect === "once" ? ", and takes effect again" : ""}. The policy decides about it as about any call.
      </p>
      <label className="runs-label" htmlFor="again-input">
        Input
      </label>
      <textarea
        id="again-input"
        className="textarea mono"
        rows={Math.min(16, Math.max(5, text.split("\n").length))}
        spellCheck={false}
        value={text}
        aria-invalid={problem !== null}
        aria-describedby="again-problem"
        onChange={(event) => setText(event.target.value)}
      />
      <p id="again-problem" className="runs-error small" role="status">
        {problem}
      </p>
      {failure !== null && <ErrorNotice error={failure} />}
      {outcome !== null && (
        <>
          <p className="runs-line">
            <Status status={outcome.status === "pending" ? "waiting" : outcome.status} />
            {outcome.status === "pending" && <span className="muted">it waits in the inbox</span>}
          </p>
          {outcome.success ? (
            <JsonView value={outcome.result} label="result" />
          ) : (
            <>
              <p>{outcome.error?.message}</p>
              <ul className="runs-notes">
                {outcome.error?.problems?.map((each) => (
                  <li key={each.path + each.expected}>
                    <code>{each.path || "input"}</code>: expected {each.expected}, got {each.got}
                  </li>
                ))}
              </ul>
            </>
          )}
        </>
      )}
    </Dialog>
  );
}

/** What is wrong with a JSON text, and where. */
function jsonProblem(text: string): string | null {
  try {
    JSON.parse(text);
    return null;
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}
