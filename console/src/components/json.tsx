/** A JSON value: indented, coloured by nothing, collapsed when it is large. */
import { useMemo, useState } from "react";
import { Button } from "./basics";
import { bytes } from "./numbers";
import { copyText } from "./toast";

const COLLAPSE_ABOVE = 20_000; // characters
const MAX_SHOWN = 500_000;
const PREVIEW = 2_000;

/** `value` may be a string that holds JSON already. A text of base64 is named, not shown. */
export function JsonView({ value, label = "JSON" }: { value: unknown; label?: string }) {
  const text = useMemo(() => toText(value), [value]);
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

function shorten(_: string, value: unknown): unknown {
  if (typeof value !== "string" || value.length < 2_000 || !/^(data:[^,]+;base64,)?[A-Za-z0-9+/=\r\n]+$/.test(value)) {
    return value;
  }
  return `${value.slice(0, 60)}… (${bytes(value.length)} of base64)`;
}
