/** A JSON value: indented, coloured by nothing, collapsed when it is large. */
import { useLayoutEffect, useMemo, useState } from "react";
import { Button } from "./basics";
import { bytes } from "./numbers";
import { spell } from "./spell";
import { copyText } from "./toast";

const COLLAPSE_ABOVE = 20_000; // characters
const PAGE = 500_000; // characters that are added at once
const PREVIEW = 2_000;

/** Whether a text of JSON is shown in part until somebody asks for all of it. */
export function isLarge(text: string): boolean {
  return text.length > COLLAPSE_ABOVE;
}

interface JsonViewProps {
  value: unknown;
  label?: string;
  isSpelt?: boolean;
  isWhole?: boolean;
  /** Called when all of it is shown. */
  onShownWhole?: () => void;
}

/**
 * `value` may be a string that holds JSON already. A text of base64 is named, not shown. `isSpelt`: what cannot be seen is spelt.
 * `isWhole`: base64 is shown as well, where somebody decides about it.
 */
export function JsonView({ value, label = "JSON", isSpelt = false, isWhole = false, onShownWhole }: JsonViewProps) {
  const text = useMemo(() => (isSpelt ? spell(toText(value, isWhole)) : toText(value, isWhole)), [value, isSpelt, isWhole]);
  const [pages, setPages] = useState(0);
  const isFolded = isLarge(text);
  const shown = !isFolded ? text : text.slice(0, pages === 0 ? PREVIEW : pages * PAGE);
  const isShownWhole = shown.length === text.length;
  useLayoutEffect(() => {
    if (isShownWhole) onShownWhole?.();
  }, [isShownWhole, value]);
  return (
    <div className="json">
      <pre tabIndex={0} aria-label={label}>
        {shown}
        {shown.length < text.length && "\n…"}
      </pre>
      <div className="json-actions">
        {isFolded && !isShownWhole && (
          <Button look="quiet" aria-expanded={false} data-more onClick={() => setPages(pages + 1)}>
            {text.length <= PAGE ? `Show all ${bytes(text.length)}` : `Show more: ${bytes(shown.length)} of ${bytes(text.length)} shown`}
          </Button>
        )}
        {isFolded && pages > 0 && (
          <Button look="quiet" aria-expanded={true} onClick={() => setPages(0)}>
            Show less
          </Button>
        )}
        <Button look="quiet" icon="copy" aria-label={`Copy ${label}`} onClick={() => void copyText(text)} />
      </div>
    </div>
  );
}

export function toText(value: unknown, isWhole = false): string {
  if (typeof value === "string") return value;
  return JSON.stringify(value, isWhole ? undefined : shorten, 2) ?? "";
}

function shorten(_: string, value: unknown): unknown {
  if (typeof value !== "string" || value.length < 2_000 || !/^(data:[^,]+;base64,)?[A-Za-z0-9+/=\r\n]+$/.test(value)) {
    return value;
  }
  return `${value.slice(0, 60)}… (${bytes(value.length)} of base64)`;
}
