/** Chat: sessions at the left, the conversation beside them. */
import { useEffect, useRef, useState } from "react";
import { useLocation, useParams } from "wouter";
import { useEvents } from "../../api/events";
import { useNarrow, useUrlState } from "../../components";
import { Conversation } from "./conversation";
import { ChatController, newId } from "./controller";
import { SessionList } from "./sessions";
import "./chat.css";

interface Opened {
  controller: ChatController;
  /** False once its first message was sent. */
  isNew: boolean;
}

export default function ChatScreen() {
  const { session } = useParams<{ session?: string }>();
  const [, go] = useLocation();
  const [params] = useUrlState();
  const narrow = useNarrow();
  const id = session === undefined ? undefined : decodeURIComponent(session);
  const [opened, setOpened] = useState<Opened | null>(null);
  // Before the conversation is rendered: nothing happens unseen behind what it reads first.
  const current = useRef<ChatController | null>(null);
  useEvents(["run.", "message", "approval.", "session."], (events) => current.current?.onEvents(events));
  useEffect(() => {
    if (opened !== null && opened.controller.id === id) return;
    if (opened !== null && id === undefined && opened.isNew) return;
    opened?.controller.close();
    const controller = new ChatController(id ?? `chat_${newId()}`);
    current.current = controller;
    void controller.open(id === undefined);
    setOpened({ controller, isNew: id === undefined });
  }, [id, opened]);
  useEffect(() => () => current.current?.close(), []);
  const showsList = !narrow || (id === undefined && params.has("list"));
  return (
    <div className="chat">
      {showsList && <SessionList current={id} isAlone={narrow} />}
      {(!narrow || !showsList) && opened !== null && (
        <Conversation
          key={opened.controller.id}
          controller={opened.controller}
          isNew={opened.isNew}
          onCreated={() => {
            if (!opened.isNew) return;
            setOpened({ ...opened, isNew: false });
            go(`/chat/${encodeURIComponent(opened.controller.id)}`, { replace: true });
          }}
        />
      )}
    </div>
  );
}
