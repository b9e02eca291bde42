/** The form of a key: what it is for, what it may, and how much. */
import { useId, type ReactNode } from "react";
import type { Scope } from "../../api/session";
import { DEFAULT_SCOPES, LIMITS, SCOPES, type ApiKey, type KeyLimits } from "./types";

export interface KeyFields {
  owner: string;
  name: string;
  scopes: Scope[];
  models: string;
  limits: Record<keyof KeyLimits, string>;
  expires: string;
}

const NO_LIMITS = Object.fromEntries(LIMITS.map(([name]) => [name, ""])) as KeyFields["limits"];

export function newFields(owner: string): KeyFields {
  return { owner, name: "", scopes: DEFAULT_SCOPES, models: "", limits: NO_LIMITS, expires: "" };
}

export function fieldsOf(key: ApiKey): KeyFields {
  const limits = Object.fromEntries(LIMITS.map(([name]) => [name, key.limits[name]?.toString() ?? ""])) as KeyFields["limits"];
  const expires = key.expiresAt === null ? "" : localDate(key.expiresAt);
  const scopes = key.scopes.length > 0 ? key.scopes : DEFAULT_SCOPES;
  return { owner: key.owner, name: key.name ?? "", scopes, models: (key.models ?? []).join(", "), limits, expires };
}

/** The body of a request; a field that is empty has no restriction. */
export function bodyOf(fields: KeyFields, withOwner: boolean): Record<string, unknown> {
  const limits = Object.fromEntries(
    LIMITS.filter(([name]) => fields.limits[name].trim() !== "").map(([name]) => [name, Number(fields.limits[name])]),
  );
  const models = fields.models.split(/[\s,]+/).filter((each) => each !== "");
  return {
    ...(withOwner ? { owner: fields.owner.trim() } : {}),
    name: fields.name.trim() === "" ? null : fields.name.trim(),
    scopes: fields.scopes,
    models: models.length === 0 ? null : models,
    limits: Object.keys(limits).length === 0 ? null : limits,
    expiresAt: fields.expires === "" ? null : new Date(fields.expires).getTime() / 1000,
  };
}

function localDate(at: number): string {
  const date = new Date(at * 1000);
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

export function KeyForm(props: { id: string; fields: KeyFields; onChange: (fields: KeyFields) => void; onSubmit: () => void; fixedOwner?: boolean }) {
  const { fields, onChange } = props;
  const set = (changes: Partial<KeyFields>) => onChange({ ...fields, ...changes });
  return (
    <form
      id={props.id}
      className="keys-form"
      onSubmit={(event) => {
        event.preventDefault();
        props.onSubmit();
      }}
    >
      {props.fixedOwner !== true && (
        <Field label="Owner" help="A person or an app. Its keys share its sessions and its budgets.">
          {(id) => (
            <input
              id={id}
              className="input"
              required
              maxLength={200}
              autoComplete="off"
              value={fields.owner}
              onChange={(event) => set({ owner: event.target.value })}
            />
          )}
        </Field>
      )}
      <Field label="Label" help="What it is for, such as “CI” or “laptop”.">
        {(id) => (
          <input id={id} className="input" maxLength={200} value={fields.name} onChange={(event) => set({ name: event.target.value })} />
        )}
      </Field>
      <fieldset>
        <legend>Scopes</legend>
        {SCOPES.map(([scope, what]) => (
          <label key={scope} className="keys-scope">
            <input
              type="checkbox"
              checked={fields.scopes.includes(scope)}
              onChange={(event) =>
                set({ scopes: event.target.checked ? [...fields.scopes, scope] : fields.scopes.filter((each) => each !== scope) })
              }
            />
            <span>
              <b>{scope}</b> <span className="muted small">{what}</span>
            </span>
          </label>
        ))}
      </fieldset>
      <Field label="Models" help="Patterns such as openai/*, separated by commas. Empty: all models.">
        {(id) => (
          <input
            id={id}
            className="input mono"
            value={fields.models}
            spellCheck={false}
            onChange={(event) => set({ models: event.target.value })}
          />
        )}
      </Field>
      <fieldset>
        <legend>Limits</legend>
        <p className="muted small">Empty: the hub's defaults, if none of them is set here.</p>
        <div className="keys-limits">
          {LIMITS.map(([name, label, unit, whole]) => (
            <Field key={name} label={label} help={unit}>
              {(id) => (
                <input
                  id={id}
                  className="input num"
                  type="number"
                  min={0}
                  step={whole ? 1 : "any"}
                  inputMode={whole ? "numeric" : "decimal"}
                  value={fields.limits[name]}
                  onChange={(event) => set({ limits: { ...fields.limits, [name]: event.target.value } })}
                />
              )}
            </Field>
          ))}
        </div>
      </fieldset>
      <Field label="Expires" help="Empty: never.">
        {(id) => (
          <input
            id={id}
            className="input"
            type="datetime-local"
            value={fields.expires}
            onChange={(event) => set({ expires: event.target.value })}
          />
        )}
      </Field>
    </form>
  );
}

function Field({ label, help, children }: { label: string; help?: string; children: (id: string) => ReactNode }) {
  const id = useId();
  return (
    <div className="keys-field">
      <label htmlFor={id}>{label}</label>
      {children(id)}
      {help !== undefined && help !== "" && <p className="muted small">{help}</p>}
    </div>
  );
}
