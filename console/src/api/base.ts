/** Where the hub is: the scripts are at `<hub>/console/assets/`, whatever prefix a proxy puts before it. */
const script = import.meta.url;
const root = import.meta.env.DEV ? new URL("/", location.href) : new URL("../../", script);

/** The path of the console, without a slash at the end: the base of the router. */
export const CONSOLE_PATH = import.meta.env.DEV ? "" : `${root.pathname}console`;

/** The address of a path of the hub, such as `/api/sessions`. */
export function hubUrl(path: string): string {
  return new URL(path.replace(/^\//, ""), root).href;
}
