/** Buttons, headers, tabs, empty states and errors. */
import { useEffect, useRef, type ButtonHTMLAttributes, type KeyboardEvent, type ReactNode } from "react";
import { HubError } from "../api/client";
import { Icon, type IconName } from "./icons";
import { spellTurns } from "./spell";

interface ButtonProps extends ButtonHTMLAttributes<HTMLButtonElement> {
  /** `primary` once a screen; `danger` is never primary; `quiet` has no border. */
  look?: "plain" | "primary" | "danger" | "quiet";
  icon?: IconName;
  /** Shows that the action is under way, and refuses a second one. */
  busy?: boolean;
}

export function Button({ look = "plain", icon, busy = false, children, className = "", ...rest }: ButtonProps) {
  return (
    <button
      type="button"
      {...rest}
      className={`btn btn-${look} ${children === undefined ? "btn-icon" : ""} ${className}`}
      aria-busy={busy || undefined}
      // A disabled button loses the focus, which a busy one needs again.
      aria-disabled={busy || undefined}
      onClick={(event) => (busy ? event.preventDefault() : rest.onClick?.(event))}
    >
      {icon !== undefined && <Icon name={icon} size={14} />}
      {children}
    </button>
  );
}

export function Kbd({ children }: { children: ReactNode }) {
  return <kbd className="kbd">{children}</kbd>;
}

/** The head of a screen: its title, a line beside it, actions at the right. */
export function ScreenHeader(props: { title: ReactNode; sub?: ReactNode; children?: ReactNode; back?: ReactNode }) {
  return (
    <header className="screen-header">
      {props.back}
      <h1 tabIndex={-1}>{spellTurns(props.title)}</h1>
      {props.sub !== undefined && <div className="sub">{props.sub}</div>}
      <div className="actions">{props.children}</div>
    </header>
  );
}

/** What to show where there is nothing: what would be here, and the next step. */
export function Empty(props: { icon?: IconName; title: string; children?: ReactNode }) {
  return (
    <div className="empty">
      {props.icon !== undefined && <Icon name={props.icon} size={20} />}
      <h2>{props.title}</h2>
      {props.children}
    </div>
  );
}

const FINAL = [403, 404]; // what a second attempt does not change

/** An error as the hub tells it, with its hint and, if given, a way to try again. */
export function ErrorNotice({ error, onRetry }: { error: unknown; onRetry?: () => void }) {
  const message = error instanceof Error ? error.message : String(error);
  const isFinal = error instanceof HubError && FINAL.includes(error.status);
  return (
    <div className="notice notice-bad" role="alert">
      <Icon name="warn" />
      <div>
        <strong>{withCode(message)}</strong>
        {error instanceof HubError && error.hint !== null && <p>{withCode(error.hint)}</p>}
      </div>
      {onRetry !== undefined && !isFinal && <Button onClick={onRetry}>Try again</Button>}
    </div>
  );
}

/** A text with what is between backticks as code. */
export function withCode(text: string): ReactNode[] {
  return text.split("`").map((part, at) => (at % 2 === 1 ? <code key={at}>{part}</code> : part));
}

export function Loading({ label = "Loading…" }: { label?: string }) {
  return (
    <div className="loading" role="status">
      {label}
    </div>
  );
}

export interface TabItem {
  id: string;
  label: ReactNode;
}

const TAB_MARGIN = 20; // px before a tab that is scrolled into view

/** Tabs; arrows move between them, and `[` `]` where the screen binds them. */
export function Tabs(props: { label: string; items: TabItem[]; active: string; onChange: (id: string) => void }) {
  const list = useRef<HTMLDivElement>(null);
  // On a narrow screen the tabs scroll: the active one is in view. `scrollIntoView` would also move where Tab begins.
  useEffect(() => {
    const box = list.current?.getBoundingClientRect();
    const tab = list.current?.querySelector(`[aria-selected="true"]`)?.getBoundingClientRect();
    if (list.current === null || box === undefined || tab === undefined) return;
    if (tab.left < box.left || tab.right > box.right) list.current.scrollLeft += tab.left - box.left - TAB_MARGIN;
  }, [props.active]);
  const onKeyDown = (event: KeyboardEvent) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const at = props.items.findIndex((item) => item.id === props.active);
    const next = props.items[(at + step + props.items.length) % props.items.length];
    if (next === undefined) return;
    props.onChange(next.id);
    list.current?.querySelector<HTMLElement>(`[data-tab="${next.id}"]`)?.focus();
  };
  return (
    <div className="tabs" role="tablist" aria-label={props.label} ref={list} onKeyDown={onKeyDown}>
      {props.items.map((item) => (
        <button
          key={item.id}
          type="button"
          role="tab"
          data-tab={item.id}
          aria-selected={item.id === props.active}
          tabIndex={item.id === props.active ? 0 : -1}
          onClick={() => props.onChange(item.id)}
        >
          {item.label}
        </button>
      ))}
    </div>
  );
}

/** Names and values, one a line. */
export function Details({ rows }: { rows: [string, ReactNode][] }) {
  return (
    <dl className="details">
      {rows.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{spellTurns(value)}</dd>
        </div>
      ))}
    </dl>
  );
}
