/** The page for those who are not signed in. */
import { useLayoutEffect, useRef, useState, type FormEvent } from "react";
import type { HubError } from "../api/client";
import type { SignIn } from "../api/session";
import { Button, ErrorNotice } from "../components";
import { Logo } from "./navigation";

/**
 * The page over another one, whose sign-in has ended. It is above open dialogs, and nothing below can be reached; that
 * is there again after the sign-in, with all that was typed.
 */
export function SignInAgain({ signIn, error }: { signIn: SignIn; error: HubError }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [before] = useState(document.activeElement); // the form takes the focus when it is inserted
  useLayoutEffect(() => {
    const element = dialog.current;
    element?.showModal();
    element?.querySelector<HTMLElement>("input")?.focus();
    return () => {
      element?.close();
      if (before instanceof HTMLElement) before.focus({ preventScroll: true });
    };
  }, []);
  return (
    <dialog
      ref={dialog}
      className="sign-in sign-in-again"
      aria-label="Sign in again"
      onCancel={(event) => event.preventDefault()}
      onClose={(event) => event.target === dialog.current && dialog.current?.isConnected === true && !dialog.current.open && dialog.current.showModal()}
    >
      <SignInForm signIn={signIn} error={error} />
    </dialog>
  );
}

export function SignInPage(props: { signIn: SignIn; error: HubError | null }) {
  return (
    <main className="sign-in">
      <SignInForm {...props} />
    </main>
  );
}

function SignInForm({ signIn, error }: { signIn: SignIn; error: HubError | null }) {
  const [key, setKey] = useState("");
  const [busy, setBusy] = useState(false);
  const [failure, setFailure] = useState<unknown>(error);
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setFailure(null);
    try {
      await signIn({ key: key.trim() });
    } catch (caught) {
      setFailure(caught);
      setBusy(false);
    }
  };
  return (
    <form onSubmit={(event) => void submit(event)}>
      <h1>
        <Logo /> Dragoman
      </h1>
      <p className="muted">Sign in with a key of this hub. It is exchanged for a cookie and not stored in the browser.</p>
      {failure !== null && <ErrorNotice error={failure} />}
      <label htmlFor="key">Key</label>
      <input
        id="key"
        className="input mono"
        type="password"
        autoComplete="current-password"
        spellCheck={false}
        placeholder="dgm_…"
        value={key}
        autoFocus
        onChange={(event) => setKey(event.target.value)}
      />
      <Button look="primary" type="submit" busy={busy} disabled={key.trim() === ""}>
        Sign in
      </Button>
      <p className="muted small">
        No key? <code>dragoman open</code> opens this page signed in, and <code>dragoman keys create --owner NAME</code>{" "}
        makes a key.
      </p>
    </form>
  );
}
