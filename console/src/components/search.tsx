/** The search field of a list, and selects for its filters; all in the address. `/` puts the focus into it, Enter into the list. */
import { useEffect, useId, useRef, useState } from "react";
import { Kbd } from "./basics";
import { Icon } from "./icons";
import { useKeys } from "./keys";
import { useUrlState } from "./url";

const LISTS = ["[role=grid]", "[role=treeitem][tabindex='0']", ".chat-session[aria-current=true]", ".chat-session"];
const DELAY = 250; // ms after the last key

export function SearchField({ name = "q", placeholder = "Search" }: { name?: string; placeholder?: string }) {
  const [params, setParams] = useUrlState();
  const current = params.get(name) ?? "";
  const [text, setText] = useState(current);
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => setText(current), [current]);
  useEffect(() => {
    if (text === current) return;
    const timer = setTimeout(() => setParams({ [name]: text }), DELAY);
    return () => clearTimeout(timer);
  }, [text]);
  useKeys("Lists", { "/": ["search", () => input.current?.focus()] });
  return (
    <label className="search">
      <Icon name="search" size={14} />
      <input
        ref={input}
        type="search"
        value={text}
        placeholder={placeholder}
        aria-label={placeholder}
        onChange={(event) => setText(event.target.value)}
        onKeyDown={(event) => {
          const isLeaving = event.key === "Escape" && text === "";
          if (isLeaving) document.querySelector<HTMLElement>("main h1")?.focus(); // where single keys work
          if (event.key === "Enter" || event.key === "ArrowDown" || isLeaving) {
            event.preventDefault();
            focusList();
          }
          if (event.key === "Escape") setText("");
        }}
      />
      <Kbd>/</Kbd>
    </label>
  );
}

/** Leave a field for the list that it searches, if there is one. */
export function focusList(): void {
  const found = LISTS.map((each) => document.querySelector<HTMLElement>(`main ${each}`));
  found.find((each) => each !== null)?.focus();
}

/** A filter as a select; the first choice, "", means all. */
export function Filter(props: { name: string; label: string; choices: [value: string, text: string][] }) {
  const [params, setParams] = useUrlState();
  const id = useId();
  return (
    <span className="filter">
      <label htmlFor={id} className="visually-hidden">
        {props.label}
      </label>
      <select
        id={id}
        className="select"
        value={params.get(props.name) ?? ""}
        onChange={(event) => setParams({ [props.name]: event.target.value })}
      >
        {props.choices.map(([value, text]) => (
          <option key={value} value={value}>
            {text}
          </option>
        ))}
      </select>
    </span>
  );
}
