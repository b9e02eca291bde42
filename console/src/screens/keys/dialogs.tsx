/** What changes keys: create, edit, rotate and revoke. A secret is shown once, until its dialog is closed. */
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useSession } from "../../api/session";
import { api } from "../../api/client";
import { reread } from "../../api/events";
import { Button, copyText, Dialog, ErrorNotice, spellTurns, toast } from "../../components";
import { bodyOf, fieldsOf, KeyForm, newFields } from "./form";
import type { ApiKey, NewKey } from "./types";

const GRACES: [seconds: number, text: string][] = [
  [0, "at once"],
  [3_600, "in an hour"],
  [86_400, "in a day"],
  [7 * 86_400, "in a week"],
];

/** Sends a change, and reads the keys anew. `error` is that of the last attempt. */
function useChange() {
  const client = useQueryClient();
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const change = async <T,>(send: () => Promise<T>): Promise<T | null> => {
    setBusy(true);
    setError(null);
    try {
      const answer = await send();
      await reread(client, ["keys"]);
      void reread(client, ["budgets"]);
      return answer;
    } catch (failed) {
      setError(failed);
      return null;
    } finally {
      setBusy(false);
    }
  };
  return { error, busy, change };
}

export function CreateKey({ onClose, onMade }: { onClose: () => void; onMade: (key: NewKey) => void }) {
  const session = useSession();
  const [fields, setFields] = useState(newFields(session.owner));
  const { error, busy, change } = useChange();
  const create = async () => {
    const made = await change(() => api.post<NewKey>("/api/keys", bodyOf(fields, true)));
    if (made !== null) onMade(made);
  };
  return (
    <Dialog
      open
      onClose={onClose}
      title="New key"
      actions={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button look="primary" type="submit" form="key-new" busy={busy} disabled={fields.scopes.length === 0}>
            Create
          </Button>
        </>
      }
    >
      {error !== null && <ErrorNotice error={error} />}
      <KeyForm id="key-new" fields={fields} onChange={setFields} onSubmit={() => void create()} />
    </Dialog>
  );
}

export function EditKey({ value, onClose }: { value: ApiKey; onClose: () => void }) {
  const [fields, setFields] = useState(fieldsOf(value));
  const { error, busy, change } = useChange();
  const save = async () => {
    const done = await change(() => api.patch<ApiKey>(`/api/keys/${encodeURIComponent(value.id)}`, bodyOf(fields, false)));
    if (done === null) return;
    toast("The key is changed.");
    onClose();
  };
  return (
    <Dialog
      open
      onClose={onClose}
      title={`Change ${value.name ?? value.id}`}
      actions={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button look="primary" type="submit" form="key-edit" busy={busy} disabled={fields.scopes.length === 0}>
            Save
          </Button>
        </>
      }
    >
      {error !== null && <ErrorNotice error={error} />}
      <KeyForm id="key-edit" fields={fields} onChange={setFields} onSubmit={() => void save()} fixedOwner />
    </Dialog>
  );
}

export function RotateKey({ value, onClose, onMade }: { value: ApiKey; onClose: () => void; onMade: (key: NewKey) => void }) {
  const [grace, setGrace] = useState(86_400);
  const { error, busy, change } = useChange();
  const rotate = async () => {
    const made = await change(() => api.post<NewKey>(`/api/keys/${encodeURIComponent(value.id)}/rotate`, { grace }));
    if (made !== null) onMade(made);
  };
  return (
    <Dialog
      open
      onClose={onClose}
      title={`Rotate ${value.name ?? value.id}`}
      actions={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button busy={busy} onClick={() => void rotate()}>
            Give it a new secret
          </Button>
        </>
      }
    >
      {error !== null && <ErrorNotice error={error} />}
      <p>The key keeps its id, its scopes and its limits. Put the new secret where the old one is used.</p>
      <p className="keys-grace">
        <label>
          The old secret ends{" "}
          <select className="select" value={grace} onChange={(event) => setGrace(Number(event.target.value))}>
            {GRACES.map(([seconds, text]) => (
              <option key={seconds} value={seconds}>
                {text}
              </option>
            ))}
          </select>
        </label>
      </p>
    </Dialog>
  );
}

export function RevokeKey({ value, onClose }: { value: ApiKey; onClose: () => void }) {
  const { error, busy, change } = useChange();
  const revoke = async () => {
    const done = await change(async () => {
      await api.delete(`/api/keys/${encodeURIComponent(value.id)}`);
      return true;
    });
    if (done === null) return;
    toast("The key is revoked.");
    onClose();
  };
  return (
    <Dialog
      open
      onClose={onClose}
      title={`Revoke ${value.name ?? value.id}?`}
      actions={
        <>
          <Button onClick={onClose}>Keep it</Button>
          <Button look="danger" busy={busy} onClick={() => void revoke()}>
            Revoke
          </Button>
        </>
      }
    >
      {error !== null && <ErrorNotice error={error} />}
      <p>
        Clients with <code>{value.prefix}…</code> are refused from now on, and what they have running ends within seconds. This
        cannot be undone. Sessions and usage stay.
      </p>
    </Dialog>
  );
}

export function Secret({ made, onClose }: { made: NewKey; onClose: () => void }) {
  return (
    <Dialog
      open
      onClose={onClose}
      title="Copy the secret now"
      actions={
        <>
          <Button icon="copy" onClick={() => void copyText(made.key, "The secret is copied")}>
            Copy
          </Button>
          <Button onClick={onClose}>Done</Button>
        </>
      }
    >
      <p>It is shown this once: the hub stores only a hash of it.</p>
      <input
        className="input mono keys-secret"
        readOnly
        aria-label="Secret"
        value={made.key}
        onFocus={(event) => event.target.select()}
      />
      <p className="muted small">
        Use it as <code>Authorization: Bearer …</code> or <code>x-api-key: …</code>, for <b>{spellTurns(made.owner)}</b>
        {made.name !== null && <> (<bdi>{spellTurns(made.name)}</bdi>)</>}.
      </p>
    </Dialog>
  );
}
