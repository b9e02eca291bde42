/** The screens: where they are, who sees them, and how they are loaded. */
import { lazy, type ComponentType, type LazyExoticComponent } from "react";
import type { Session } from "../api/session";
import type { IconName } from "../components";

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
  Component: LazyExoticComponent<ComponentType>;
  preload: () => Promise<unknown>;
}

type Load = () => Promise<{ default: ComponentType }>;

function screen(fields: Omit<Screen, "Component" | "preload">, load: Load): Screen {
  return { ...fields, Component: lazy(load), preload: load };
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
