/** The navigation: at the left, folded into a bar at the bottom on narrow screens. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link, useLocation } from "wouter";
import { api } from "../api/client";
import { useInvalidate, useStreamStarted } from "../api/events";
import { useSession, type Session } from "../api/session";
import { Button, Dialog, Icon, toastError, type IconName } from "../components";
import { SCREENS, type Screen } from "./screens";
import { applyTheme, currentTheme, THEMES, type Theme } from "./theme";

const BAR_SCREENS = 4; // of a narrow screen; the others are behind "More"

export function Logo() {
  return (
    <svg className="logo" width="20" height="20" viewBox="0 0 24 24" fill="none" stroke="currentColor" strokeWidth="2" strokeLinecap="round" strokeLinejoin="round" aria-hidden="true">
      <path d="M4 18c5-1 7-4 7-8V5l3 3h4l-2 3c0 5-4 8-12 8z" />
      <path d="M14 8v.01" />
    </svg>
  );
}

/** Sign out; if the hub does not answer, say so, since whoever comes next would be signed in. */
export function signOut(session: Session): void {
  session.signOut().catch(toastError);
}

/** How many approvals and questions wait; live. */
export function useWaitingCount(): number {
  const session = useSession();
  const isStarted = useStreamStarted();
  const isCaller = session.can("chat") || session.can("operations");
  const { data } = useQuery({
    queryKey: ["approvals", "waiting-count"],
    queryFn: () => api.get<{ counts: { pending: number } }>("/api/approvals", { query: { status: "pending", limit: 1, counts: 1 } }),
    enabled: isCaller && isStarted,
  });
  useInvalidate("approval.", ["approvals"]);
  return data?.counts.pending ?? 0;
}

export function Navigation({ onPalette, onKeys }: { onPalette: () => void; onKeys: () => void }) {
  const session = useSession();
  const waiting = useWaitingCount();
  const [location] = useLocation();
  const [more, setMore] = useState(false);
  const visible = SCREENS.filter((screen) => screen.isVisible(session));
  const isBehindMore = visible.slice(BAR_SCREENS).some((screen) => isCurrent(screen, location));
  const item = (screen: Screen) => (
    <NavItem key={screen.id} screen={screen} badge={screen.id === "inbox" ? waiting : 0} onGo={() => setMore(false)} />
  );
  return (
    <>
      <nav className="side-nav" aria-label="Screens">
        <Link href="/chat" className="brand">
          <Logo /> <span className="nav-label">Dragoman</span>
        </Link>
        {visible.map(item)}
        <div className="spacer" />
        <button type="button" className="nav-item" onClick={onPalette}>
          <Icon name="search" /> <span className="nav-label">Go to…</span> <kbd className="kbd">{MOD} K</kbd>
        </button>
        <div className="me">
          <span className="avatar" aria-hidden="true">
            {(session.owner[0] ?? "?").toUpperCase()}
          </span>
          <span className="me-name" title={session.owner}>
            {session.owner}
            {session.can("admin") && session.keysRequired && <span className="muted">admin</span>}
          </span>
          <ThemeButton />
          <Button look="quiet" icon="help" aria-label="Keyboard shortcuts" title="Keyboard shortcuts (?)" onClick={onKeys} />
          {session.keysRequired && (
            <Button look="quiet" icon="out" aria-label="Sign out" title="Sign out" onClick={() => signOut(session)} />
          )}
        </div>
      </nav>
      <nav className="bottom-nav" aria-label="Screens">
        {visible.slice(0, BAR_SCREENS).map(item)}
        <button
          type="button"
          className="nav-item"
          aria-expanded={more}
          aria-current={isBehindMore ? "true" : undefined}
          onClick={() => setMore(true)}
        >
          <Icon name="dots" /> More
        </button>
      </nav>
      <Dialog open={more} onClose={() => setMore(false)} title="Dragoman" look="sheet">
        <div className="more-nav">
          {visible.slice(BAR_SCREENS).map(item)}
          <button type="button" className="nav-item" onClick={() => (setMore(false), onPalette())}>
            <Icon name="search" /> Go to…
          </button>
          <div className="me">
            <span className="me-name">{session.owner}</span>
            <ThemeButton />
            {session.keysRequired && (
              <Button look="quiet" icon="out" onClick={() => signOut(session)}>
                Sign out
              </Button>
            )}
          </div>
        </div>
      </Dialog>
    </>
  );
}

export const MOD = /Mac|iPhone|iPad/.test(navigator.platform) ? "⌘" : "Ctrl";

function isCurrent(screen: Screen, location: string): boolean {
  return location === screen.path || location.startsWith(`${screen.path}/`);
}

function NavItem({ screen, badge, onGo }: { screen: Screen; badge: number; onGo: () => void }) {
  const [location] = useLocation();
  return (
    <Link
      href={screen.path}
      className="nav-item"
      title={screen.title}
      aria-current={isCurrent(screen, location) ? "page" : undefined}
      onClick={onGo}
      onMouseEnter={() => void screen.preload()}
    >
      <Icon name={screen.icon} /> <span className="nav-label">{screen.title}</span>
      {badge > 0 && (
        <span className="badge" aria-label={`${badge} waiting`}>
          {badge > 99 ? "99+" : badge}
        </span>
      )}
    </Link>
  );
}

const THEME_ICONS: Record<Theme, IconName> = { system: "halfmoon", light: "sun", dark: "moon" };

function ThemeButton() {
  const [theme, setTheme] = useState(currentTheme());
  const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length] ?? "system";
  const change = () => {
    applyTheme(next);
    setTheme(next);
  };
  return <Button look="quiet" icon={THEME_ICONS[theme]} aria-label={`Theme: ${theme}`} title={`Theme: ${theme}`} onClick={change} />;
}
