/** Who is signed in. `useSession()` in any component below `SessionGate`. */
import { useQueryClient } from "@tanstack/react-query";
import { createContext, useCallback, useContext, useEffect, useRef, useState, type ReactNode } from "react";
import { api, HubError, setCredentials, setOnUnauthorized } from "./client";
import { retryEvents } from "./events";
import { setKeepAlive } from "./sse";

export type Scope = "gateway" | "chat" | "operations" | "spoke" | "runner" | "admin";

export interface SessionAnswer {
  signedIn: boolean;
  /** False: the hub asks for no keys, and everybody is signed in. */
  keysRequired: boolean;
  version: string;
  /** Whether this hub has teams. */
  teams: boolean;
  /** Whether several hosts share the database: events of calls are those of the host that answers. */
  hosts: boolean;
  /** Seconds after which the hub sends something on a stream; a hub of an earlier version does not say. */
  keepAlive?: number;
  owner: string;
  keyId: string | null;
  scopes: Scope[];
  csrf: string | null;
  expiresAt: number | null;
}

export interface Session extends SessionAnswer {
  can: (scope: Scope) => boolean;
  signOut: () => Promise<void>;
}

const Context = createContext<Session | null>(null);

export function useSession(): Session {
  const session = useContext(Context);
  if (session === null) throw new Error("useSession outside of SessionGate");
  return session;
}

type State =
  | { at: "loading" }
  | { at: "out"; error: HubError | null }
  /** `ended`: the sign-in has ended, and the page waits behind the form for the next one. */
  | { at: "in"; answer: SessionAnswer; ended: boolean };
export type SignIn = (body: { key: string } | { link: string }) => Promise<void>;

const PATH = "/api/console/session";
/** Who is signed in at the hub that answers now. */
export function readSession(): Promise<SessionAnswer> {
  return api.get<SessionAnswer>(PATH);
}

/** Tabs of one browser share the cookie of a sign-in, so that what one of them changes is over in the others. */
const TABS = new BroadcastChannel("dragoman-sign-in");

/** Whether two sign-ins see the same: what is on the page may stay. */
function isSame(one: SessionAnswer, other: SessionAnswer): boolean {
  return one.signedIn && other.signedIn && one.owner === other.owner && one.scopes.join() === other.scopes.join();
}

/**
 * Show `children` to whoever is signed in, `fallback` to others. A sign-in that ends leaves the page as it is, behind
 * `again`: what was typed is there when the same person has signed in again. For somebody else it is loaded anew.
 */
export function SessionGate(props: {
  children: ReactNode;
  loading: ReactNode;
  fallback: (signIn: SignIn, error: HubError | null) => ReactNode;
  again: (signIn: SignIn, error: HubError) => ReactNode;
}) {
  const [state, setState] = useState<State>({ at: "loading" });
  const queries = useQueryClient();
  const current = useRef<SessionAnswer | null>(null);
  const leaving = useRef(false); // signing out: requests may be refused before the answer to that is there
  const accept = useCallback((answer: SessionAnswer) => {
    if (current.current !== null && !isSame(current.current, answer)) {
      reloadForAnother();
      return;
    }
    setCredentials(answer.csrf);
    if (answer.keepAlive !== undefined) setKeepAlive(answer.keepAlive);
    if (current.current === null) queries.clear(); // what was read before, perhaps by somebody else
    else void queries.invalidateQueries();
    current.current = answer.signedIn ? answer : null;
    setState(answer.signedIn ? { at: "in", answer, ended: false } : { at: "out", error: null });
    retryEvents();
  }, [queries]);
  const signIn = useCallback<SignIn>(
    async (body) => {
      accept(await api.post<SessionAnswer>(PATH, body));
      TABS.postMessage("signed in");
    },
    [accept],
  );
  useEffect(() => {
    TABS.onmessage = ({ data }: MessageEvent<string>) => {
      if (data === "signed out") reloadForAnother();
      else void readSession().then(accept, () => location.reload());
    };
    setOnUnauthorized(() => {
      // A wrong key is told where it was typed; what ends a sign-in leads back to the form.
      if (leaving.current) return;
      setState((now) => (now.at === "in" && now.answer.keysRequired && !now.ended ? { ...now, ended: true } : now));
    });
    const link = takeLink();
    const begin = async () => {
      let failed: unknown = null;
      if (link !== null) await signIn({ link }).catch((error: unknown) => (failed = error));
      if (link !== null && failed === null) return;
      accept(await readSession()); // a link that was used before may have signed this browser in
      if (failed !== null) setState((now) => (now.at === "in" ? now : out(failed)));
    };
    begin().catch((error: unknown) => setState(out(error)));
  }, [accept, signIn]);

  if (state.at === "loading") return props.loading;
  if (state.at === "out") return props.fallback(signIn, state.error);
  const { answer } = state;
  const session: Session = {
    ...answer,
    can: (scope) => answer.scopes.includes(scope),
    signOut: async () => {
      leaving.current = true;
      try {
        await api.delete(PATH);
      } catch (error) {
        if (!(error instanceof HubError && error.status === 401)) throw error; // that sign-in has ended before
      } finally {
        leaving.current = false;
      }
      TABS.postMessage("signed out");
      setCredentials(null);
      sessionStorage.clear();
      current.current = null;
      setState({ at: "out", error: null });
    },
  };
  return (
    <Context.Provider value={session}>
      {props.children}
      {state.ended && props.again(signIn, ENDED)}
    </Context.Provider>
  );
}

/** Load the page as whoever is signed in now, with nothing left of before. */
function reloadForAnother(): void {
  sessionStorage.clear(); // drafts
  location.reload();
}

function out(error: unknown): State {
  return { at: "out", error: error instanceof HubError ? error : null };
}

const ENDED = new HubError(401, "unauthorized", "Your sign-in has ended.", "Sign in again to go on where you were.");

/** The token of a link that opened this page; it is removed from the address, since it is valid once. */
function takeLink(): string | null {
  const found = /^#link=([\w-]+)$/.exec(location.hash);
  if (found === null) return null;
  history.replaceState(history.state, "", location.pathname + location.search);
  return found[1] ?? null;
}
