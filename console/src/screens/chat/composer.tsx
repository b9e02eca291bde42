/** Where a message is written: text, files, agent and model; while an answer is made, stop or steer it. */
import { useQuery } from "@tanstack/react-query";
import { useEffect, useRef, useState, type ClipboardEvent } from "react";
import { api } from "../../api/client";
import { Button, Kbd, toast } from "../../components";
import type { WhenBusy } from "./controller";
import { Files } from "./message";
import type { FilePart } from "./messages";

export interface Agent {
  name: string;
  model: string | null;
  description: string | null;
}

export function useAgents(): Agent[] {
  const { data } = useQuery({ queryKey: ["agents"], queryFn: () => api.get<{ agents: Agent[] }>("/api/agents"), staleTime: 60_000 });
  return data?.agents ?? [];
}

interface ModelList {
  models: string[];
  default: string | null;
}

export function useModels(): ModelList {
  const { data } = useQuery({ queryKey: ["models"], queryFn: () => api.get<ModelList>("/api/models"), staleTime: 60_000 });
  return data ?? { models: [], default: null };
}

export interface Draft {
  text: string;
  files: FilePart[];
  agent: string | null;
  model: string | null;
  whenBusy: WhenBusy;
}

interface ComposerProps {
  sessionId: string;
  agent: string | null;
  model: string | null;
  isBusy: boolean;
  canStop: boolean;
  onSend: (draft: Draft) => Promise<void>;
  onStop: () => Promise<void>;
  onSettings: (settings: { agent?: string | null; model?: string | null }) => void;
}

const MAX_FILE = 10_000_000; // bytes
const MAX_PASTED = 50_000; // characters: a longer text is attached as a file, for a text field of megabytes is slow
const BUSY: [WhenBusy, string][] = [
  ["steer", "Steer: after this step"],
  ["queue", "Queue: after this answer"],
  ["interrupt", "Interrupt: now"],
];

export function Composer(props: ComposerProps) {
  const [text, setText] = useDraftText(props.sessionId);
  const keepText = useRef<(change: (text: string) => string) => void>(() => undefined);
  keepText.current = (change) => setText(change(text));
  const [files, setFiles] = useState<FilePart[]>([]);
  const [whenBusy, setWhenBusy] = useState<WhenBusy>("steer");
  const [stopping, setStopping] = useState(false);
  const input = useRef<HTMLTextAreaElement>(null);
  const picker = useRef<HTMLInputElement>(null);
  const agents = useAgents();
  const { models, default: defaultModel } = useModels();
  const agentName = props.agent ?? "default";
  useEffect(() => input.current?.focus({ preventScroll: true }), [props.sessionId]);
  useEffect(() => {
    const area = input.current;
    if (area === null) return;
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight, 240)}px`;
  }, [text]);
  useEffect(() => {
    if (!props.isBusy) setStopping(false);
  }, [props.isBusy]);

  const canSend = text.trim() !== "" || files.length > 0;
  const submit = () => {
    if (!canSend) return;
    const draft = { text: text.trim(), files, agent: props.agent, model: props.model, whenBusy };
    setText("");
    setFiles([]);
    input.current?.focus();
    props.onSend(draft).catch(() => {
      // What was not accepted is not lost, before what was written meanwhile. The session may have its address by now.
      keepText.current((now) => [draft.text, now].filter((each) => each !== "").join("\n"));
      setFiles((now) => [...draft.files, ...now]);
    });
  };
  const addFiles = async (list: Iterable<File>) => {
    for (const file of list) {
      if (file.size > MAX_FILE) {
        toast(`${file.name} is larger than 10 MB.`, "bad");
        continue;
      }
      const part = await readFile(file).catch(() => null);
      if (part === null) toast(`${file.name} cannot be read.`, "bad"); // as a folder that was dropped
      else setFiles((now) => [...now, part]);
    }
  };
  const onPaste = (event: ClipboardEvent) => {
    const pasted = event.clipboardData.getData("text/plain");
    if (event.clipboardData.files.length > 0) void addFiles(event.clipboardData.files);
    if (pasted.length <= MAX_PASTED) return;
    event.preventDefault();
    void addFiles([new File([pasted], "pasted.txt", { type: "text/plain" })]);
    toast("The pasted text is long: it was attached as pasted.txt.");
  };
  useFileDrop((dropped) => void addFiles(dropped));
  return (
    <form
      className="chat-box"
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
    >
      {files.length > 0 && <Files files={files} onRemove={(file) => setFiles(files.filter((each) => each !== file))} />}
      <textarea
        ref={input}
        rows={1}
        aria-label="Message"
        placeholder={props.isBusy ? "Say something while it works…" : `Message ${agentName === "default" ? "the hub" : agentName}…`}
        value={text}
        onChange={(event) => setText(event.target.value)}
        onPaste={onPaste}
        onKeyDown={(event) => {
          if (event.key === "Enter" && !event.shiftKey && !event.nativeEvent.isComposing) {
            event.preventDefault();
            submit();
          }
          if (event.key === "Escape") document.querySelector<HTMLElement>(".chat-log")?.focus();
        }}
      />
      <div className="chat-box-bar">
        <input
          ref={picker}
          type="file"
          multiple
          hidden
          aria-label="Files"
          onChange={(event) => {
            void addFiles(event.target.files ?? []);
            event.target.value = "";
          }}
        />
        <Button icon="clip" aria-label="Attach files" title="Attach files" onClick={() => picker.current?.click()} />
        <select
          className="select chat-pick"
          aria-label="Agent"
          value={agentName}
          onChange={(event) => props.onSettings({ agent: event.target.value === "default" ? null : event.target.value })}
        >
          {(agents.length === 0 ? [{ name: agentName, description: null }] : agents).map((agent) => (
            <option key={agent.name} value={agent.name} title={agent.description ?? undefined}>
              {agent.name === "default" ? "default agent" : agent.name}
            </option>
          ))}
        </select>
        <select
          className="select chat-pick"
          aria-label="Model"
          value={props.model ?? ""}
          onChange={(event) => props.onSettings({ model: event.target.value === "" ? null : event.target.value })}
        >
          <option value="">{modelOfAgent(agents, agentName) ?? defaultModel ?? "the agent's model"}</option>
          {[...new Set([...models, ...(props.model === null ? [] : [props.model])])].map((model) => (
            <option key={model} value={model}>
              {model}
            </option>
          ))}
        </select>
        <span className="chat-box-right">
          {props.isBusy && canSend ? (
            <select className="select chat-pick" aria-label="When it is answered" value={whenBusy} onChange={(event) => setWhenBusy(event.target.value as WhenBusy)}>
              {BUSY.map(([value, label]) => (
                <option key={value} value={value}>
                  {label}
                </option>
              ))}
            </select>
          ) : (
            !props.isBusy && (
              <span className="chat-hint muted small">
                <Kbd>Enter</Kbd> send
              </span>
            )
          )}
          {props.canStop && (
            <Button
              icon="stop"
              busy={stopping}
              onClick={(event) => {
                // The button goes. A keyboard on the screen of a telephone need not open for that.
                if (event.currentTarget.matches(":focus-visible")) input.current?.focus();
                setStopping(true);
                void props.onStop().catch(() => setStopping(false));
              }}
            >
              Stop
            </Button>
          )}
          {(!props.isBusy || canSend) && (
            <Button look="primary" type="submit" disabled={!canSend}>
              Send
            </Button>
          )}
        </span>
      </div>
    </form>
  );
}

function modelOfAgent(agents: Agent[], name: string): string | null {
  return agents.find((agent) => agent.name === name)?.model ?? null;
}

/** Take files that are dropped anywhere on the page: the browser would open them in place of it. */
function useFileDrop(onFiles: (files: FileList) => void): void {
  const handler = useRef(onFiles);
  handler.current = onFiles;
  useEffect(() => {
    const take = (event: DragEvent) => {
      if (event.dataTransfer === null || !event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();
      if (event.type === "drop") handler.current(event.dataTransfer.files);
    };
    window.addEventListener("dragover", take);
    window.addEventListener("drop", take);
    return () => {
      window.removeEventListener("dragover", take);
      window.removeEventListener("drop", take);
    };
  }, []);
}

function readFile(file: File): Promise<FilePart> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => {
      const mediaType = file.type === "" ? "application/octet-stream" : file.type;
      const url = String(reader.result).replace(/^data:[^;,]*/, `data:${mediaType}`);
      resolve({ type: "file", url, mediaType, filename: file.name });
    };
    reader.onerror = () => reject(reader.error ?? new Error(`${file.name} cannot be read`));
    reader.readAsDataURL(file);
  });
}

/** The text of a session that was not sent; it survives a reload. */
function useDraftText(sessionId: string): [string, (text: string) => void] {
  const key = `dragoman.draft.${sessionId}`;
  const [state, setState] = useState({ key, text: sessionStorage.getItem(key) ?? "" });
  const text = state.key === key ? state.text : (sessionStorage.getItem(key) ?? "");
  const set = (changed: string) => {
    setState({ key, text: changed });
    if (changed === "") sessionStorage.removeItem(key);
    else sessionStorage.setItem(key, changed);
  };
  return [text, set];
}
