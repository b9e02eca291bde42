/** The subset of JSON Schema that the form draws; what it does not know is written as JSON. */
export interface Schema {
  type?: string | string[];
  title?: string;
  description?: string;
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  enum?: unknown[];
  const?: unknown;
  oneOf?: Schema[];
  anyOf?: Schema[];
  default?: unknown;
  format?: string;
  minimum?: number;
  maximum?: number;
  maxLength?: number;
  additionalProperties?: boolean | Schema;
  $ref?: string;
  $defs?: Record<string, Schema>;
}

export type Shape =
  | { kind: "object"; schema: Schema; properties: [name: string, schema: Schema][] }
  | { kind: "array"; schema: Schema; items: Schema }
  | { kind: "choice"; schema: Schema; values: unknown[] }
  | { kind: "one of"; schema: Schema; options: Schema[] }
  | { kind: "text"; schema: Schema; long: boolean }
  | { kind: "number"; schema: Schema; whole: boolean }
  | { kind: "yes or no"; schema: Schema }
  | { kind: "json"; schema: Schema };

const MAX_DEPTH = 8;

/** What the form draws for a schema. `null` beside another type is left out: an empty field is not sent. */
export function shapeOf(given: Schema, root: Schema, depth = 0): Shape {
  const schema = resolve(given, root);
  if (depth > MAX_DEPTH) return { kind: "json", schema };
  if (schema.const !== undefined) return { kind: "choice", schema, values: [schema.const] };
  if (Array.isArray(schema.enum)) return { kind: "choice", schema, values: schema.enum };
  const options = (schema.oneOf ?? schema.anyOf)?.filter((option) => resolve(option, root).type !== "null");
  if (options !== undefined) {
    const [only] = options;
    if (options.length === 1 && only !== undefined) return shapeOf({ ...withoutOptions(schema), ...resolve(only, root) }, root, depth + 1);
    return { kind: "one of", schema, options };
  }
  switch (typeOf(schema)) {
    case "object": {
      const properties = Object.entries(schema.properties ?? {});
      const isOpen = properties.length === 0 && schema.additionalProperties !== false;
      return isOpen && depth > 0 ? { kind: "json", schema } : { kind: "object", schema, properties };
    }
    case "array":
      return schema.items === undefined ? { kind: "json", schema } : { kind: "array", schema, items: schema.items };
    case "string":
      return { kind: "text", schema, long: isLong(schema) };
    case "number":
      return { kind: "number", schema, whole: false };
    case "integer":
      return { kind: "number", schema, whole: true };
    case "boolean":
      return { kind: "yes or no", schema };
    default:
      return { kind: "json", schema };
  }
}

export function resolve(schema: Schema, root: Schema): Schema {
  const name = /^#\/\$defs\/(.+)$/.exec(schema.$ref ?? "")?.[1];
  const found = name === undefined ? undefined : root.$defs?.[name];
  if (found === undefined) return schema;
  const { $ref: _, ...own } = schema;
  return { ...found, ...own };
}

function withoutOptions(schema: Schema): Schema {
  const { oneOf: _one, anyOf: _any, ...rest } = schema;
  return rest;
}

function typeOf(schema: Schema): string | undefined {
  const types = (Array.isArray(schema.type) ? schema.type : [schema.type]).filter((type) => type !== "null");
  if (types.length === 1 && types[0] !== undefined) return types[0];
  return schema.properties !== undefined ? "object" : undefined;
}

const LONG_NAMES = /^(text|content|body|code|message|prompt|query|source|expression|script)$/i;

function isLong(schema: Schema): boolean {
  return (schema.maxLength ?? 0) > 200 || LONG_NAMES.test(schema.title ?? "");
}

/** The value to begin with: defaults, and nothing else. */
export function initialValue(given: Schema, root: Schema): unknown {
  const shape = shapeOf(given, root);
  if (shape.schema.default !== undefined && shape.schema.default !== null) return shape.schema.default;
  if (shape.kind !== "object") return undefined;
  const entries = shape.properties.map(([name, schema]) => [name, initialValue(schema, root)] as const);
  return Object.fromEntries(entries.filter(([, value]) => value !== undefined && !isEmptyObject(value)));
}

function isEmptyObject(value: unknown): boolean {
  return typeof value === "object" && value !== null && !Array.isArray(value) && Object.keys(value).length === 0;
}

/** A word for an option of `oneOf`: its title, its one constant, or its type. */
export function optionName(given: Schema, root: Schema, at: number): string {
  const schema = resolve(given, root);
  const constant = Object.values(schema.properties ?? {}).find((each) => each.const !== undefined)?.const;
  return schema.title ?? (constant === undefined ? undefined : String(constant)) ?? typeOf(schema) ?? `option ${at + 1}`;
}
