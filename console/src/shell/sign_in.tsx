/** The page for those who are not signed in. */
import { useState, type FormEvent } from "react";
import type { HubError } from "../api/client";
import type { SignIn } from "../api/session";
import { Button, ErrorNotice } from "../components";
import { Logo } from "./navigation";

export function SignInPage({ signIn, error }: { signIn: SignIn; error: HubError | null }) {
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
    <main className="sign-in">
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
    </main>
  );
}
