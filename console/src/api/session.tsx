/** Who is signed in. `useSession()` in any component below `SessionGate`. */
import { useQueryClient } from "@tanstack/react-query";
import { createContext, useCallback, useContext, useEffect, useState, type ReactNode } from "react";
import { api, HubError, setCredentials, setOnUnauthorized } from "./client";

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

type State = { at: "loading" } | { at: "out"; error: HubError | null } | { at: "in"; answer: SessionAnswer };
export type SignIn = (body: { key: string } | { link: string }) => Promise<void>;

const PATH = "/api/console/session";
/** Tabs of one browser share the cookie of a sign-in, so that what one of them changes is over in the others. */
const TABS = new BroadcastChannel("dragoman-sign-in");

/** Show `children` to whoever is signed in, `fallback` to others. */
export function SessionGate(props: {
  children: ReactNode;
  loading: ReactNode;
  fallback: (signIn: SignIn, error: HubError | null) => ReactNode;
}) {
  const [state, setState] = useState<State>({ at: "loading" });
  const queries = useQueryClient();
  const accept = useCallback((answer: SessionAnswer) => {
    setCredentials(answer.csrf);
    queries.clear(); // what was read before, perhaps by somebody else
    setState(answer.signedIn ? { at: "in", answer } : { at: "out", error: null });
  }, [queries]);
  const signIn = useCallback<SignIn>(
    async (body) => {
      accept(await api.post<SessionAnswer>(PATH, body));
      TABS.postMessage("signed in");
    },
    [accept],
  );
  useEffect(() => {
    TABS.onmessage = () => location.reload(); // as somebody else, or as nobody, with nothing left of before
    setOnUnauthorized(() => {
      // A wrong key is told where it was typed; what ends a sign-in leads back to the form.
      setState((now) => (now.at === "in" && now.answer.keysRequired ? { at: "out", error: ENDED } : now));
    });
    const link = takeLink();
    const begin = async () => {
      let failed: unknown = null;
      if (link !== null) await signIn({ link }).catch((error: unknown) => (failed = error));
      if (link !== null && failed === null) return;
      accept(await api.get<SessionAnswer>(PATH)); // a link that was used before may have signed this browser in
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
      await api.delete(PATH);
      TABS.postMessage("signed out");
      setCredentials(null);
      setState({ at: "out", error: null });
    },
  };
  return <Context.Provider value={session}>{props.children}</Context.Provider>;
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
