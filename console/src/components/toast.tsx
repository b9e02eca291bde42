/** Short messages at the bottom that go by themselves: `toast("Copied")`, `toastError(error)`. */
import { useEffect, useState } from "react";
import { Icon } from "./icons";

interface ToastItem {
  id: number;
  text: string;
  tone: "ok" | "bad";
}

const SECONDS = 5;
let nextId = 1;
let show: (item: ToastItem) => void = () => undefined;

export function toast(text: string, tone: "ok" | "bad" = "ok"): void {
  show({ id: nextId++, text, tone });
}

export function toastError(error: unknown): void {
  toast(error instanceof Error ? error.message : String(error), "bad");
}

export function Toasts() {
  const [items, setItems] = useState<ToastItem[]>([]);
  useEffect(() => {
    show = (item) => {
      setItems((now) => [...now.slice(-2), item]);
      setTimeout(() => setItems((now) => now.filter((each) => each.id !== item.id)), SECONDS * 1000);
    };
  }, []);
  return (
    <div className="toasts" role="status" aria-live="polite">
      {items.map((item) => (
        <div key={item.id} className={`toast toast-${item.tone}`}>
          <Icon name={item.tone === "ok" ? "check" : "warn"} size={14} />
          {item.text}
        </div>
      ))}
    </div>
  );
}

/** Copy a text, and say so. */
export async function copyText(text: string, what = "Copied"): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    toast(what);
  } catch {
    toast("The browser did not allow copying.", "bad");
  }
}
