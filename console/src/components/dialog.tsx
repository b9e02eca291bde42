/** A dialog over the native <dialog>: its first field has the focus, Esc closes it, and the focus returns. */
import { useEffect, useId, useLayoutEffect, useRef, type ReactNode } from "react";
import { Button } from "./basics";
import { spellTurns } from "./spell";

const FIELDS = ["input", "select", "textarea"].map((name) => `.dialog-body ${name}:not([type="hidden"])`);
const FIRST_FIELD = `:is(${FIELDS.join(", ")}), .dialog-actions button, .palette input`;

export function Dialog(props: {
  open: boolean;
  onClose: () => void;
  title: string;
  children: ReactNode;
  /** Buttons at the bottom. */
  actions?: ReactNode;
  /** `sheet`: at the right side, at the bottom of narrow screens. */
  look?: "box" | "sheet" | "palette";
}) {
  const { open, look = "box" } = props;
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const element = dialog.current;
    if (element === null) return;
    if (open && !element.open) {
      element.showModal();
      // The browser would choose the title, which is right where there is something to read.
      if (look !== "sheet") element.querySelector<HTMLElement>(FIRST_FIELD)?.focus();
    }
    if (!open && element.open) element.close();
  }, [open]);
  // One that leaves the page while it is open: only a dialog that closes gives the focus back.
  useLayoutEffect(() => {
    const element = dialog.current;
    return () => element?.close();
  }, []);
  return (
    <dialog
      ref={dialog}
      className={`dialog dialog-${look}`}
      aria-labelledby={id}
      // A key pressed just after Esc must find the owner's state closed: it changes before the dialog closes.
      onCancel={(event) => {
        if (event.target !== dialog.current) return;
        event.preventDefault();
        props.onClose();
      }}
      // React tells a dialog of those within it, too; and this one may be open again by now.
      onClose={(event) => event.target === dialog.current && open && !event.currentTarget.open && props.onClose()}
      onClick={(event) => event.target === dialog.current && props.onClose()}
    >
      {open && (
        <div className="dialog-inside">
          <div className={look === "palette" ? "visually-hidden" : "dialog-head"}>
            <h2 id={id} tabIndex={-1}>{spellTurns(props.title)}</h2>
            {look !== "palette" && <Button look="quiet" icon="x" aria-label="Close" onClick={props.onClose} />}
          </div>
          {look === "palette" ? props.children : <div className="dialog-body">{props.children}</div>}
          {props.actions !== undefined && <div className="dialog-actions">{props.actions}</div>}
        </div>
      )}
    </dialog>
  );
}
