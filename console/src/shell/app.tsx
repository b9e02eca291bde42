/** The shell: navigation, the screen of the address, the palette and the list of keys. */
import { Component, useCallback, useEffect, useRef, useState, type ErrorInfo, type ReactNode } from "react";
import { Redirect, Route, Switch, useLocation } from "wouter";
import { readSession, useSession } from "../api/session";
import { useStreamAway, useStreamProblem, useStreamStarted, useStreamState } from "../api/events";
import { Button, Empty, Loading, MissingModule, ScreenHeader, Toasts, useKeys, type KeyBindings } from "../components";
import { KeysList } from "./keys_list";
import { Navigation } from "./navigation";
import { Palette } from "./palette";
import { SCREENS, screenOf } from "./screens";

export function App() {
  const session = useSession();
  const [location, go] = useLocation();
  const isStarted = useStreamStarted();
  const [layer, setLayer] = useState<"palette" | "keys" | null>(null);
  const openKeys = useCallback(() => setLayer("keys"), []);
  const close = useCallback(() => setLayer(null), []);
  const visible = SCREENS.filter((screen) => screen.isVisible(session));
  const bindings: KeyBindings = {
    "mod+k": ["go to a screen, session, run or operation", () => setLayer("palette")],
    "?": ["show this list", openKeys],
  };
  for (const screen of visible) bindings[`g ${screen.key}`] = [screen.title, () => go(screen.path)];
  useKeys("Everywhere", bindings);
  const current = screenOf(location);
  useEffect(() => {
    document.title = current === undefined ? "Dragoman" : `${current.title} · Dragoman`;
  }, [current]);
  const isClosed = current !== undefined && !visible.includes(current);
  const home = visible[0]?.path ?? "/usage";
  return (
    <div className="app">
      <a className="skip" href="#main">
        Skip to the screen
      </a>
      <Navigation onPalette={() => setLayer("palette")} onKeys={openKeys} />
      <main id="main" tabIndex={-1}>
        <Offline />
        <Upgraded />
        <ErrorBoundary key={current?.id ?? "none"}>
          <Switch>
            <Route path="/">
              <Redirect to={home} replace />
            </Route>
            {visible.map((screen) => (
              <Route key={screen.id} path={screen.pattern}>
                {isStarted ? <screen.Component /> : <Loading />}
              </Route>
            ))}
            <Route>
              <ScreenHeader title="Not found" />
              <Empty icon="help" title={isClosed ? "Your key does not open this screen" : "There is no such screen"}>
                <p>{isClosed ? "An administrator can give it the scope that it lacks." : "The address may be misspelt."}</p>
                <Button onClick={() => go(home)}>Go to the first screen</Button>
              </Empty>
            </Route>
          </Switch>
        </ErrorBoundary>
      </main>
      <Palette open={layer === "palette"} onClose={close} onKeys={openKeys} />
      <KeysList open={layer === "keys"} onClose={close} />
      <Toasts />
    </div>
  );
}

const OFFLINE_AFTER = 3000; // ms: a short break is nobody's concern

function Offline() {
  const state = useStreamState();
  const problem = useStreamProblem();
  const [shown, setShown] = useState(false);
  useEffect(() => {
    if (state !== "waiting" && state !== "connecting") {
      setShown(false);
      return;
    }
    const timer = setTimeout(() => setShown(true), OFFLINE_AFTER);
    return () => clearTimeout(timer);
  }, [state]);
  if (!shown) return null;
  return (
    <div className="notice-bar" role="status">
      {problem === null ? "The hub does not answer." : `The hub sends no events: ${problem.message}.`} What you see may be old; it goes on by itself.
    </div>
  );
}

/** Says that the hub was upgraded since this page was opened: its scripts are those of the version before. */
function Upgraded() {
  const { version } = useSession();
  const isLive = useStreamState() === "live";
  const wasLive = useRef(false);
  const [current, setCurrent] = useState(version);
  useEffect(() => {
    if (!isLive) return;
    if (wasLive.current) {
      // The stream was away, as while a hub restarts. A hub that is away again is asked the next time.
      readSession().then(
        (answer) => setCurrent(answer.version),
        () => undefined,
      );
    }
    wasLive.current = true;
  }, [isLive]);
  if (current === version) return null;
  return (
    <div className="notice-bar" role="status">
      The hub now runs version {current}; this page is from version {version}. <Button onClick={() => location.reload()}>Load it again</Button>
    </div>
  );
}

/** A screen whose script or styles did not arrive. When the hub was away, it is loaded as soon as the hub is back. */
function Missing() {
  const isAway = useStreamAway();
  const wasAway = useRef(false);
  useEffect(() => {
    if (wasAway.current && !isAway) location.reload();
    wasAway.current ||= isAway;
  }, [isAway]);
  return (
    <Empty icon="warn" title="This screen cannot be loaded">
      {isAway ? (
        <p>The hub does not answer. The screen is loaded as soon as it does.</p>
      ) : (
        <>
          <p>The hub was away for a moment, or was upgraded since this page was opened. Load the page again to go on.</p>
          <Button onClick={() => location.reload()}>Load it again</Button>
        </>
      )}
    </Empty>
  );
}

/** A screen that fails does not take the others with it. */
class ErrorBoundary extends Component<{ children: ReactNode }, { error: Error | null }> {
  override state = { error: null as Error | null };

  static getDerivedStateFromError(error: Error) {
    return { error };
  }

  override componentDidCatch(error: Error, info: ErrorInfo) {
    console.error(error, info.componentStack);
  }

  override render() {
    if (this.state.error === null) return this.props.children;
    if (this.state.error instanceof MissingModule) return <Missing />;
    return (
      <Empty icon="warn" title="This screen failed">
        <p className="mono small">{this.state.error.message}</p>
        <Button onClick={() => location.reload()}>Load it again</Button>
      </Empty>
    );
  }
}
