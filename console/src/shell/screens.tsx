/** The screens: where they are, who sees them, and how they are loaded. */
import { useEffect, useState, type ComponentType } from "react";
import type { Session } from "../api/session";
import { Loading, loadModule, type IconName } from "../components";

export interface Screen {
  id: string;
  title: string;
  /** Below /console; `path` leads to the screen, `pattern` is everything that is in it. */
  path: string;
  pattern: string;
  icon: IconName;
  /** `g` + this key leads here. */
  key: string;
  isVisible: (session: Session) => boolean;
  Component: ComponentType;
  preload: () => Promise<unknown>;
}

type Load = () => Promise<{ default: ComponentType }>;

/** React's `lazy` keeps a screen back for 300 ms after its "loading" was shown; this draws it at once. */
function screen(fields: Omit<Screen, "Component" | "preload">, load: Load): Screen {
  let loaded: ComponentType | null = null;
  const preload = () => loadModule(load, "default").then((module) => (loaded = module.default));
  function Loaded() {
    const [Component, setComponent] = useState<ComponentType | null>(() => loaded);
    const [error, setError] = useState<unknown>(null);
    useEffect(() => {
      if (Component === null) preload().then((found) => setComponent(() => found), setError);
    }, [Component]);
    if (error !== null) throw error;
    return Component === null ? <Loading /> : <Component />;
  }
  return { ...fields, Component: Loaded, preload };
}

const always = () => true;
const chat = (session: Session) => session.can("chat");
const admin = (session: Session) => session.can("admin");
const callers = (session: Session) => session.can("chat") || session.can("operations");
const operations = (session: Session) => session.can("operations");
const teams = (session: Session) => session.teams && session.can("chat");

export const SCREENS: Screen[] = [
  screen(
    { id: "chat", title: "Chat", path: "/chat", pattern: "/chat/:session?", icon: "chat", key: "c", isVisible: chat },
    () => import("../screens/chat"),
  ),
  screen(
    { id: "runs", title: "Runs", path: "/runs", pattern: "/runs/:id?", icon: "runs", key: "r", isVisible: callers },
    () => import("../screens/runs"),
  ),
  screen(
    { id: "inbox", title: "Inbox", path: "/inbox", pattern: "/inbox", icon: "inbox", key: "i", isVisible: callers },
    () => import("../screens/inbox"),
  ),
  screen(
    {
      id: "operations",
      title: "Operations",
      path: "/operations",
      pattern: "/operations/:id?",
      icon: "operations",
      key: "o",
      isVisible: operations,
    },
    () => import("../screens/operations"),
  ),
  screen(
    { id: "teams", title: "Teams", path: "/teams", pattern: "/teams/*?", icon: "team", key: "t", isVisible: teams },
    () => import("../screens/teams"),
  ),
  screen(
    { id: "usage", title: "Usage", path: "/usage", pattern: "/usage", icon: "usage", key: "u", isVisible: always },
    () => import("../screens/usage"),
  ),
  screen(
    { id: "keys", title: "Keys", path: "/keys", pattern: "/keys/:id?", icon: "key", key: "k", isVisible: admin },
    () => import("../screens/keys"),
  ),
  screen(
    { id: "system", title: "System", path: "/system", pattern: "/system", icon: "system", key: "s", isVisible: admin },
    () => import("../screens/system"),
  ),
];

/** The screen of a path below /console. */
export function screenOf(path: string): Screen | undefined {
  return SCREENS.find((screen) => path === screen.path || path.startsWith(`${screen.path}/`));
}
