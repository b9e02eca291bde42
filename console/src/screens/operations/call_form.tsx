/** Call an operation: a form of its schema or JSON, and what came of it. */
import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { api } from "../../api/client";
import { reread } from "../../api/events";
import { Button, Tabs, toastError } from "../../components";
import { SchemaForm } from "./form";
import { Result } from "./result";
import { initialValue } from "./schema";
import type { OperationDetail, Outcome } from "./types";
import "./operations.css";

/** `input` fills it in; without one it begins with the defaults of the schema. */
export function CallForm({ operation, input }: { operation: OperationDetail; input: Record<string, unknown> | undefined }) {
  const client = useQueryClient();
  const [tab, setTab] = useState("form");
  const [value, setValue] = useState(() => input ?? ((initialValue(operation.inputSchema, operation.inputSchema) ?? {}) as Record<string, unknown>));
  const [text, setText] = useState("");
  const [outcome, setOutcome] = useState<{ outcome: Outcome; seconds: number } | null>(null);
  const [calling, setCalling] = useState<AbortController | null>(null);
  const current = useRef<AbortController | null>(null);
  useEffect(() => () => current.current?.abort(), []); // a call ends with its page
  const textError = tab === "json" ? jsonError(text) : null;
  const show = (next: string) => {
    if (next === "json") setText(JSON.stringify(value, null, 2));
    else if (jsonError(text) === null) setValue(JSON.parse(text) as Record<string, unknown>);
    setTab(next);
  };
  const run = async () => {
    const controller = (current.current = new AbortController());
    setCalling(controller);
    const began = performance.now();
    try {
      const input = tab === "json" ? (JSON.parse(text) as unknown) : value;
      const path = `/api/operations/${encodeURIComponent(operation.id)}/call`;
      const answer = await api.post<Outcome>(path, input, { signal: controller.signal });
      setOutcome({ outcome: answer, seconds: (performance.now() - began) / 1000 });
    } catch (failed) {
      if (!controller.signal.aborted) toastError(failed);
    }
    setCalling(null);
    void reread(client, ["operations", "stats", operation.id]);
  };
  const problems = Object.fromEntries(
    (outcome?.outcome.error?.problems ?? []).map((each) => [each.path, `expected ${each.expected}, got ${each.got}`]),
  );
  return (
    <section className="operations-run" aria-label="Run">
      <Tabs
        label="How to write the input"
        items={[
          { id: "form", label: "Form" },
          { id: "json", label: "JSON" },
        ]}
        active={tab}
        onChange={show}
      />
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (textError === null && calling === null) void run();
        }}
      >
        {tab === "form" ? (
          <SchemaForm schema={operation.inputSchema} value={value} onChange={setValue} problems={problems} />
        ) : (
          <div className="operations-field">
            <textarea
              className="textarea mono"
              rows={8}
              spellCheck={false}
              aria-label="Input as JSON"
              value={text}
              onChange={(event) => setText(event.target.value)}
            />
            {textError !== null && <p className="operations-problem small">{textError}</p>}
          </div>
        )}
        <div className="operations-go">
          <Button look="primary" icon="play" type="submit" busy={calling !== null} disabled={textError !== null}>
            Run
          </Button>
          {calling !== null && (
            <Button icon="stop" onClick={() => calling.abort()}>
              Stop
            </Button>
          )}
          {operation.effect === "once" && <span className="muted small">It acts each time you press this.</span>}
        </div>
      </form>
      {outcome !== null && <Result outcome={outcome.outcome} seconds={outcome.seconds} />}
    </section>
  );
}

/** What is wrong with the JSON of an input, and where. */
export function jsonError(text: string): string | null {
  try {
    const value = JSON.parse(text) as unknown;
    return typeof value === "object" && value !== null && !Array.isArray(value) ? null : "The input is an object: {…}";
  } catch (failed) {
    return failed instanceof Error ? failed.message : "it is not JSON";
  }
}
