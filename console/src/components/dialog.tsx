/** A dialog over the native <dialog>: it holds the focus, Esc closes it, and the focus returns. */
import { useEffect, useId, useRef, type ReactNode } from "react";
import { Button } from "./basics";

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
    if (open && !element.open) element.showModal();
    if (!open && element.open) element.close();
  }, [open]);
  return (
    <dialog
      ref={dialog}
      className={`dialog dialog-${look}`}
      aria-labelledby={id}
      onClose={() => open && props.onClose()}
      onClick={(event) => event.target === dialog.current && props.onClose()}
    >
      {open && (
        <div className="dialog-inside">
          <div className={look === "palette" ? "visually-hidden" : "dialog-head"}>
            <h2 id={id}>{props.title}</h2>
            {look !== "palette" && <Button look="quiet" icon="x" aria-label="Close" onClick={props.onClose} />}
          </div>
          {look === "palette" ? props.children : <div className="dialog-body">{props.children}</div>}
          {props.actions !== undefined && <div className="dialog-actions">{props.actions}</div>}
        </div>
      )}
    </dialog>
  );
}
