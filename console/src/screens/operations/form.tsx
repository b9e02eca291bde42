/** A form for a JSON Schema. It checks nothing: the hub answers with every problem of an input. */
import { useId, useState, type ReactNode } from "react";
import { Button } from "../../components";
import { initialValue, optionName, resolve, shapeOf, type Schema, type Shape } from "./schema";

interface FieldProps {
  schema: Schema;
  root: Schema;
  value: unknown;
  onChange: (value: unknown) => void;
  label: string;
  required: boolean;
  /** Problems of the last call, by path. */
  problems: Record<string, string>;
  path: string;
}

type Fields = Record<string, unknown>;

/** The fields of an object at the top: what an operation takes. */
export function SchemaForm(props: { schema: Schema; value: Fields; onChange: (value: Fields) => void; problems: Record<string, string> }) {
  const shape = shapeOf(props.schema, props.schema);
  if (shape.kind !== "object") {
    return (
      <JsonField
        {...{ schema: props.schema, root: props.schema, label: "Input", required: true, path: "", value: props.value, problems: props.problems }}
        onChange={(value) => props.onChange((value ?? {}) as Fields)}
      />
    );
  }
  if (shape.properties.length === 0) return <p className="muted small">It takes no input.</p>;
  return (
    <div className="operations-form">
      <Properties
        shape={shape}
        root={props.schema}
        value={props.value}
        onChange={(value) => props.onChange(value ?? {})}
        problems={props.problems}
        path=""
      />
    </div>
  );
}

function Properties(props: {
  shape: Extract<Shape, { kind: "object" }>;
  root: Schema;
  value: Fields;
  onChange: (value: Fields) => void;
  problems: Record<string, string>;
  path: string;
}) {
  const required = props.shape.schema.required ?? [];
  return props.shape.properties.map(([name, schema]) => (
    <Field
      key={name}
      schema={{ title: name, ...schema }}
      root={props.root}
      label={name}
      required={required.includes(name)}
      value={props.value[name]}
      problems={props.problems}
      path={props.path === "" ? name : `${props.path}.${name}`}
      onChange={(value) => {
        const { [name]: _, ...rest } = props.value;
        props.onChange(value === undefined ? rest : { ...rest, [name]: value });
      }}
    />
  ));
}

function Field(props: FieldProps) {
  const shape = shapeOf(props.schema, props.root);
  switch (shape.kind) {
    case "object":
      return <ObjectField {...props} shape={shape} />;
    case "array":
      return <ArrayField {...props} shape={shape} />;
    case "one of":
      return <OneOfField {...props} shape={shape} />;
    case "json":
      return <JsonField {...props} />;
    default:
      return <SimpleField {...props} shape={shape} />;
  }
}

type SimpleShape = Exclude<Shape, { kind: "object" | "array" | "one of" | "json" }>;

function SimpleField(props: FieldProps & { shape: SimpleShape }) {
  const { shape, value, onChange } = props;
  return (
    <Labelled {...props} schema={shape.schema}>
      {(id, described) => {
        const common = { id, "aria-describedby": described, "aria-invalid": props.problems[props.path] !== undefined || undefined };
        switch (shape.kind) {
          case "choice":
            return (
              <select
                {...common}
                className="select"
                value={value === undefined ? "" : JSON.stringify(value)}
                onChange={(event) => onChange(event.target.value === "" ? undefined : JSON.parse(event.target.value))}
              >
                <option value="">{props.required ? "choose…" : "–"}</option>
                {shape.values.map((each) => (
                  <option key={JSON.stringify(each)} value={JSON.stringify(each)}>
                    {String(each)}
                  </option>
                ))}
              </select>
            );
          case "yes or no":
            return (
              <select
                {...common}
                className="select"
                value={value === undefined ? "" : String(value)}
                onChange={(event) => onChange(event.target.value === "" ? undefined : event.target.value === "true")}
              >
                <option value="">{props.required ? "choose…" : "–"}</option>
                <option value="true">yes</option>
                <option value="false">no</option>
              </select>
            );
          case "number":
            return (
              <input
                {...common}
                className="input num"
                type="number"
                step={shape.whole ? 1 : "any"}
                min={shape.schema.minimum}
                max={shape.schema.maximum}
                value={typeof value === "number" ? value : ""}
                onChange={(event) => onChange(event.target.value === "" ? undefined : event.target.valueAsNumber)}
              />
            );
          case "text":
            return <TextInput common={common} shape={shape} value={value} onChange={onChange} required={props.required} />;
        }
      }}
    </Labelled>
  );
}

const INPUT_TYPES: Record<string, string> = { email: "email", uri: "url", date: "date", time: "time" };

function TextInput(props: {
  common: { id: string };
  shape: Extract<Shape, { kind: "text" }>;
  value: unknown;
  onChange: (value: unknown) => void;
  required: boolean;
}) {
  const text = typeof props.value === "string" ? props.value : "";
  // An empty text is a value where one is required; elsewhere the field is left out.
  const change = (next: string) => props.onChange(next === "" && !props.required ? undefined : next);
  if (props.shape.long)
    return <textarea {...props.common} className="textarea" rows={3} value={text} onChange={(event) => change(event.target.value)} />;
  return (
    <input
      {...props.common}
      className="input"
      type={INPUT_TYPES[props.shape.schema.format ?? ""] ?? "text"}
      value={text}
      autoComplete="off"
      onChange={(event) => change(event.target.value)}
    />
  );
}

function ObjectField(props: FieldProps & { shape: Extract<Shape, { kind: "object" }> }) {
  const value = (props.value ?? {}) as Fields;
  return (
    <fieldset className="operations-group">
      <legend>
        {props.label} <Optional required={props.required} />
      </legend>
      <Description text={props.shape.schema.description} />
      <Properties
        shape={props.shape}
        root={props.root}
        value={value}
        problems={props.problems}
        path={props.path}
        onChange={(next) => props.onChange(Object.keys(next).length === 0 && !props.required ? undefined : next)}
      />
    </fieldset>
  );
}

function ArrayField(props: FieldProps & { shape: Extract<Shape, { kind: "array" }> }) {
  const values = Array.isArray(props.value) ? (props.value as unknown[]) : [];
  const set = (next: unknown[]) => props.onChange(next.length === 0 && !props.required ? undefined : next);
  return (
    <fieldset className="operations-group">
      <legend>
        {props.label} <Optional required={props.required} />
      </legend>
      <Description text={props.shape.schema.description} />
      {values.map((each, at) => (
        <div key={at} className="operations-item">
          <div>
            <Field
              schema={props.shape.items}
              root={props.root}
              label={`${props.label} ${at + 1}`}
              required
              value={each}
              problems={props.problems}
              path={`${props.path}.${at}`}
              onChange={(next) => set(values.map((old, place) => (place === at ? (next ?? null) : old)))}
            />
          </div>
          <Button look="quiet" icon="x" aria-label={`Remove ${props.label} ${at + 1}`} onClick={() => set(values.filter((_, place) => place !== at))} />
        </div>
      ))}
      <Button icon="plus" onClick={() => set([...values, initialValue(props.shape.items, props.root) ?? emptyOf(props)])}>
        Add to {props.label}
      </Button>
      <Problem text={props.problems[props.path]} />
    </fieldset>
  );
}

function emptyOf(props: FieldProps & { shape: Extract<Shape, { kind: "array" }> }): unknown {
  const shape = shapeOf(props.shape.items, props.root);
  return { object: {}, array: [], text: "" }[shape.kind as string] ?? null;
}

function OneOfField(props: FieldProps & { shape: Extract<Shape, { kind: "one of" }> }) {
  const { options, schema } = props.shape;
  const [at, setAt] = useState<number | null>(props.value === undefined ? null : guessOption(props.value, options, props.root));
  const id = useId();
  const option = at === null ? undefined : options[at];
  return (
    <fieldset className="operations-group">
      <legend>
        <label htmlFor={id}>{props.label}</label> <Optional required={props.required} />
      </legend>
      <Description text={schema.description} />
      <select
        id={id}
        className="select"
        value={at ?? ""}
        onChange={(event) => {
          const next = event.target.value === "" ? null : Number(event.target.value);
          const chosen = next === null ? undefined : options[next];
          setAt(next);
          props.onChange(chosen === undefined ? undefined : initialValue(chosen, props.root));
        }}
      >
        <option value="">{props.required ? "choose…" : "–"}</option>
        {options.map((each, place) => (
          <option key={place} value={place}>
            {optionName(each, props.root, place)}
          </option>
        ))}
      </select>
      {option !== undefined && <Field {...props} schema={option} label={optionName(option, props.root, at ?? 0)} required />}
    </fieldset>
  );
}

function guessOption(value: unknown, options: Schema[], root: Schema): number {
  const type = Array.isArray(value) ? "array" : typeof value;
  const found = options.findIndex((option) => resolve(option, root).type === type);
  return Math.max(0, found);
}

function JsonField(props: FieldProps) {
  const [text, setText] = useState(props.value === undefined ? "" : JSON.stringify(props.value, null, 2));
  const [error, setError] = useState<string | null>(null);
  return (
    <Labelled {...props} problems={error === null ? props.problems : { ...props.problems, [props.path]: error }}>
      {(id, described) => (
        <textarea
          id={id}
          aria-describedby={described}
          className="textarea mono"
          rows={3}
          spellCheck={false}
          placeholder="JSON"
          value={text}
          onChange={(event) => {
            setText(event.target.value);
            try {
              props.onChange(event.target.value.trim() === "" ? undefined : JSON.parse(event.target.value));
              setError(null);
            } catch (failed) {
              setError(failed instanceof Error ? failed.message : "it is not JSON");
            }
          }}
        />
      )}
    </Labelled>
  );
}

function Labelled(props: FieldProps & { children: (id: string, described: string | undefined) => ReactNode }) {
  const id = useId();
  const { description } = props.schema;
  const problem = props.problems[props.path];
  const described = description !== undefined || problem !== undefined ? `${id}-help` : undefined;
  return (
    <div className="operations-field">
      <div>
        <label htmlFor={id}>{props.label}</label> <Optional required={props.required} />
      </div>
      {props.children(id, described)}
      <div id={`${id}-help`}>
        <Problem text={problem} />
        <Description text={description} />
      </div>
    </div>
  );
}

function Optional({ required }: { required: boolean }) {
  return required ? null : <span className="muted small">optional</span>;
}

function Description({ text }: { text: string | undefined }) {
  return text === undefined ? null : <p className="muted small">{text}</p>;
}

function Problem({ text }: { text: string | undefined }) {
  return text === undefined ? null : (
    <p className="operations-problem small" role="alert">
      {text}
    </p>
  );
}
