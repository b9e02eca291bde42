/** Requests to the hub. The cookie of the sign-in goes with each; changes carry the CSRF token. */
import { noteDate } from "./clock";
import { hubUrl } from "./base";

export type Query = Record<string, string | number | boolean | null | undefined>;

export interface RequestOptions {
  query?: Query;
  body?: unknown;
  signal?: AbortSignal;
  headers?: Record<string, string>;
}

/** An error as the hub tells it; `status` 0: the hub could not be reached. */
export class HubError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly hint: string | null = null,
    readonly details: Record<string, unknown> = {},
  ) {
    super(message);
    this.name = "HubError";
  }
}

let csrf: string | null = null;
let signIns = 0;
let onUnauthorized: () => void = () => undefined;

/** Called by the sign-in: the token of the session. A request that was sent before ends no later sign-in. */
export function setCredentials(token: string | null): void {
  csrf = token;
  signIns += 1;
}

/** What to do when the hub refuses a request because the sign-in has ended. */
export function setOnUnauthorized(callback: () => void): void {
  onUnauthorized = callback;
}

export function apiUrl(path: string, query: Query = {}): string {
  const url = new URL(hubUrl(path));
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, String(value));
  }
  return url.href;
}

/** Send a request and return the response, whose status is below 400. Throws HubError, or AbortError. */
export async function send(method: string, path: string, options: RequestOptions = {}): Promise<Response> {
  const headers: Record<string, string> = { ...options.headers };
  if (csrf !== null && method !== "GET") headers["x-dragoman-csrf"] = csrf;
  if (options.body !== undefined) headers["content-type"] = "application/json";
  const sentIn = signIns;
  let response: Response;
  try {
    response = await fetch(apiUrl(path, options.query), {
      method,
      headers,
      body: options.body === undefined ? undefined : JSON.stringify(options.body),
      signal: options.signal,
      credentials: "same-origin",
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new HubError(0, "unreachable", "The hub does not answer.", "Is `dragoman serve` running?");
  }
  noteDate(response.headers.get("date"));
  if (response.status === 401 && sentIn === signIns) onUnauthorized();
  if (response.status >= 400) throw await errorOf(response);
  return response;
}

async function errorOf(response: Response): Promise<HubError> {
  try {
    const { error } = (await response.json()) as { error: Record<string, unknown> };
    const { code, message, hint, ...details } = error;
    return new HubError(response.status, String(code), String(message), (hint as string) ?? null, details);
  } catch {
    return new HubError(response.status, "http_error", `The hub answered ${response.status}.`);
  }
}

async function json<T>(method: string, path: string, options: RequestOptions): Promise<T> {
  const response = await send(method, path, options);
  return (response.status === 204 ? undefined : await response.json()) as T;
}

/** `api.get<Runs>("/api/runs", { query })`; each throws HubError. */
export const api = {
  get: <T>(path: string, options: RequestOptions = {}) => json<T>("GET", path, options),
  post: <T>(path: string, body?: unknown, options: RequestOptions = {}) => json<T>("POST", path, { ...options, body }),
  put: <T>(path: string, body?: unknown, options: RequestOptions = {}) => json<T>("PUT", path, { ...options, body }),
  patch: <T>(path: string, body?: unknown, options: RequestOptions = {}) => json<T>("PATCH", path, { ...options, body }),
  delete: <T = void>(path: string, options: RequestOptions = {}) => json<T>("DELETE", path, options),
};
