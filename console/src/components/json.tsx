/** A JSON value: indented, coloured by nothing, collapsed when it is large. */
import { useMemo, useState } from "react";
import { Button } from "./basics";
import { bytes } from "./numbers";
import { copyText } from "./toast";

const COLLAPSE_ABOVE = 20_000; // characters
const MAX_SHOWN = 500_000;
const PREVIEW = 2_000;

/** `value` may be a string that holds JSON already. A text of base64 is named, not shown. `isSpelt`: what cannot be seen is spelt. */
export function JsonView({ value, label = "JSON", isSpelt = false }: { value: unknown; label?: string; isSpelt?: boolean }) {
  const text = useMemo(() => (isSpelt ? spell(toText(value)) : toText(value)), [value, isSpelt]);
  const [open, setOpen] = useState(false);
  const isLarge = text.length > COLLAPSE_ABOVE;
  const shown = !isLarge ? text : open ? text.slice(0, MAX_SHOWN) : text.slice(0, PREVIEW);
  return (
    <div className="json">
      <pre tabIndex={0} aria-label={label}>
        {shown}
        {shown.length < text.length && "\n…"}
      </pre>
      <div className="json-actions">
        {isLarge && (
          <Button look="quiet" aria-expanded={open} onClick={() => setOpen(!open)}>
            {open ? "Show less" : `Show all ${bytes(text.length)}`}
          </Button>
        )}
        <Button look="quiet" icon="copy" aria-label={`Copy ${label}`} onClick={() => void copyText(text)} />
      </div>
    </div>
  );
}

export function toText(value: unknown): string {
  if (typeof value === "string") return value;
  return JSON.stringify(value, shorten, 2) ?? "";
}

/** Characters that cannot be seen are spelt, so that nobody approves something other than what they read. */
export function spell(text: string): string {
  return text.replace(/[\u007f-\u00a0\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\u3164\ufeff\ufff9-\ufffb]/gu, (sign) => {
    return `\\u${sign.codePointAt(0)!.toString(16).padStart(4, "0")}`;
  });
}

function shorten(_: string, value: unknown): unknown {
  if (typeof value !== "string" || value.length < 2_000 || !/^(data:[^,]+;base64,)?[A-Za-z0-9+/=\r\n]+$/.test(value)) {
    return value;
  }
  return `${value.slice(0, 60)}… (${bytes(value.length)} of base64)`;
}
