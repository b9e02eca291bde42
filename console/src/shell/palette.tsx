/** The palette: go to a screen, a session, a run by its id, an operation, or change a setting. */
import { useQuery } from "@tanstack/react-query";
import { useEffect, useId, useMemo, useState } from "react";
import { useLocation } from "wouter";
import { api } from "../api/client";
import { useSession } from "../api/session";
import { Dialog, Icon, spellTurns, type IconName } from "../components";
import { signOut } from "./navigation";
import { SCREENS } from "./screens";
import { applyTheme, THEMES } from "./theme";

interface Choice {
  id: string;
  icon: IconName;
  text: string;
  kind: string;
  run: () => void;
}

interface Found {
  sessions: { id: string; title: string | null }[];
  operations: string[];
  isSearching: boolean; // the operations are of an earlier text, or none yet
}

const MAX_EACH = 8;
const DELAY = 150; // ms after the last key

export function Palette({ open, onClose, onKeys }: { open: boolean; onClose: () => void; onKeys: () => void }) {
  return (
    <Dialog open={open} onClose={onClose} title="Go to" look="palette">
      {open && <PaletteBody onClose={onClose} onKeys={onKeys} />}
    </Dialog>
  );
}

function PaletteBody({ onClose, onKeys }: { onClose: () => void; onKeys: () => void }) {
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const [isEntered, setEntered] = useState(false); // Enter was pressed before the operations were found
  const list = useId();
  const { choices, isSearching } = useChoices(text, onKeys);
  useEffect(() => {
    setAt(0);
    setEntered(false);
  }, [text]);
  const choose = (choice: Choice | undefined) => {
    if (choice === undefined) return;
    onClose();
    choice.run();
  };
  const enter = () => {
    const choice = choices[at];
    const isCurrent = !isSearching || (choice !== undefined && choice.kind !== "operation");
    if (isCurrent) choose(choice);
    else setEntered(true);
  };
  useEffect(() => {
    if (isEntered && !isSearching) choose(choices[at]);
  });
  const move = (step: number) => {
    setEntered(false);
    setAt((now) => (choices.length === 0 ? 0 : (now + step + choices.length) % choices.length));
  };
  useEffect(() => {
    document.getElementById(`${list}-${at}`)?.scrollIntoView({ block: "nearest" });
  }, [at, list]);
  return (
    <div className="palette">
      <div className="palette-input">
        <Icon name="search" />
        <input
          autoFocus
          role="combobox"
          aria-expanded="true"
          aria-controls={list}
          aria-activedescendant={choices.length > 0 ? `${list}-${at}` : undefined}
          aria-label="Go to a screen, session, run, operation or setting"
          placeholder="A screen, session, run id, operation or setting"
          value={text}
          onChange={(event) => setText(event.target.value)}
          onKeyDown={(event) => {
            if (event.key === "ArrowDown") move(1);
            else if (event.key === "ArrowUp") move(-1);
            else if (event.key === "Enter") enter();
            else return;
            event.preventDefault();
          }}
        />
      </div>
      <ul id={list} role="listbox" aria-label="Choices">
        {choices.map((choice, index) => (
          <li
            key={choice.id}
            id={`${list}-${index}`}
            role="option"
            aria-selected={index === at}
            onClick={() => choose(choice)}
            onMouseMove={() => setAt(index)}
          >
            <Icon name={choice.icon} />
            <span className="palette-text">{choice.text}</span>
            <span className="muted small">{choice.kind}</span>
          </li>
        ))}
      </ul>
      {choices.length === 0 && <p className="palette-none muted">{isSearching ? "Searching…" : `No results for “${text}”.`}</p>}
    </div>
  );
}

/** What fits the text, best kinds first: ids, screens, sessions, operations, settings. */
function useChoices(text: string, onKeys: () => void): { choices: Choice[]; isSearching: boolean } {
  const session = useSession();
  const [, go] = useLocation();
  const wanted = text.trim();
  const found = useFound(wanted);
  const choices = useMemo(() => {
    const fits = (title: string) => title.toLowerCase().includes(wanted.toLowerCase());
    const choices: Choice[] = [];
    if (/^(run|call)_[\w-]+$/.test(wanted)) {
      choices.push({ id: wanted, icon: "runs", text: wanted, kind: "run", run: () => go(`/runs/${wanted}`) });
    }
    for (const screen of SCREENS) {
      if (!screen.isVisible(session) || !fits(screen.title)) continue;
      choices.push({ id: screen.path, icon: screen.icon, text: screen.title, kind: "screen", run: () => go(screen.path) });
    }
    for (const { id, title } of found.sessions.filter((each) => fits(each.title ?? "") || fits(each.id)).slice(0, MAX_EACH)) {
      const run = () => go(`/chat/${encodeURIComponent(id)}`);
      choices.push({ id: `session:${id}`, icon: "chat", text: spellTurns(title ?? id), kind: "session", run });
    }
    for (const id of found.operations.slice(0, MAX_EACH)) {
      const run = () => go(`/operations/${encodeURIComponent(id)}`);
      choices.push({ id: `operation:${id}`, icon: "operations", text: id, kind: "operation", run });
    }
    for (const theme of THEMES) {
      const run = () => applyTheme(theme);
      choices.push({ id: `theme:${theme}`, icon: "sun", text: `Theme: ${theme}`, kind: "setting", run });
    }
    choices.push({ id: "keys", icon: "help", text: "Keyboard shortcuts", kind: "setting", run: onKeys });
    if (session.keysRequired) {
      choices.push({ id: "out", icon: "out", text: "Sign out", kind: "setting", run: () => signOut(session) });
    }
    return choices.filter((choice) => choice.kind !== "setting" || fits(choice.text));
  }, [wanted, found, session, go, onKeys]);
  return { choices, isSearching: found.isSearching };
}

/** Sessions and operations: read once, and the operations again for a text. */
function useFound(wanted: string): Found {
  const session = useSession();
  const [query, setQuery] = useState("");
  useEffect(() => {
    const timer = setTimeout(() => setQuery(wanted), DELAY);
    return () => clearTimeout(timer);
  }, [wanted]);
  const sessions = useQuery({
    queryKey: ["sessions", "palette"],
    queryFn: () => api.get<Pick<Found, "sessions">>("/api/sessions", { query: { limit: 100 } }),
    enabled: session.can("chat"),
    staleTime: 10_000,
  });
  const searches = session.can("operations") && wanted.length > 1;
  const operations = useQuery({
    queryKey: ["operations", "palette", query],
    queryFn: () => api.get<{ tools: { tool: string }[] }>("/api/operations", { query: { q: query, record: 0 } }),
    enabled: searches && query.length > 1,
    staleTime: 10_000,
  });
  const isSearching = searches && (query !== wanted || operations.isLoading);
  return useMemo(
    () => ({
      sessions: sessions.data?.sessions ?? [],
      operations: query === "" ? [] : (operations.data?.tools ?? []).map(({ tool }) => tool),
      isSearching,
    }),
    [sessions.data, operations.data, query, isSearching],
  );
}
