"""History: what was said in sessions, to be found again and read; also what no model is shown any more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from dragoman.errors import NotFound
from dragoman.messages import Message, Role
from dragoman.operations.plain_text import part_text

MatchKind: TypeAlias = Literal["all", "some", "text"]
"""What was found holds all the words; some of them, as nothing holds all; or the text as it was asked for."""


class SnippetPiece(msgspec.Struct, frozen=True):
    """A piece of what was said; `hit` is True for what was looked for."""

    text: str
    hit: bool = False


class Passage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A place where it was said: the message, when it began (unix seconds), and some words around the hit."""

    session_id: str
    title: str | None
    message_id: str
    role: Role
    created_at: float
    snippet: tuple[SnippetPiece, ...]


class IndexingProgress(msgspec.Struct, frozen=True):
    """How far it is with what was said and not looked at yet, in messages; more is done at each search."""

    done: int
    left: int


class MessageSearchResult(msgspec.Struct, frozen=True):
    """What was found, the best first; each message once. With `indexing` it is not all that there is."""

    matched: MatchKind
    passages: tuple[Passage, ...] = ()
    indexing: IndexingProgress | None = None


class MessageText(msgspec.Struct, frozen=True):
    """A whole message in words."""

    role: Role
    created_at: float
    text: str


class MessageSearch(Protocol):
    """Where what was said is kept."""

    async def search(
        self,
        query: str,
        *,
        owner: str,
        session_id: str | None = None,
        truncated_only: bool = False,
        limit: int = 20,
    ) -> MessageSearchResult:
        """What was said in the owner's sessions, or in that one of them.

        `unseen`: only what the model of that session is not shown any more; before a context policy dropped
        something, all that was said before the last question.
        """
        ...

    async def read(self, session_id: str, message_id: str, *, owner: str) -> MessageText:
        """A message of one of the owner's sessions. NotFound, also for another's."""
        ...


class MemoryMessageSearch:
    """What was said in one session of one owner, while it is told; the words must stand there just so."""

    def __init__(
        self, messages: Sequence[Message] = (), *, owner: str = "local", session_id: str = "s"
    ) -> None:
        self._messages = messages
        self._owner_and_session = (owner, session_id)

    async def search(
        self,
        query: str,
        *,
        owner: str,
        session_id: str | None = None,
        truncated_only: bool = False,
        limit: int = 20,
    ) -> MessageSearchResult:
        last = max((at for at, said in enumerate(self._messages) if said.role == "user"), default=0)
        held = self._session_messages(owner, session_id)[: last if truncated_only else None]
        found = [(message, text) for message in held for text in [message_text(message)] if query in text]
        passages = [self._make_passage(message, text, query=query) for message, text in found[:limit]]
        return MessageSearchResult("text", tuple(passages))

    async def read(self, session_id: str, message_id: str, *, owner: str) -> MessageText:
        for message in self._session_messages(owner, session_id):
            if message.id == message_id:
                return MessageText(message.role, 0.0, message_text(message))
        raise NotFound(f"there is no message {message_id!r} in this session")

    def _session_messages(self, owner: str, session_id: str | None) -> Sequence[Message]:
        return (
            self._messages
            if (owner, session_id or self._owner_and_session[1]) == self._owner_and_session
            else ()
        )

    def _make_passage(self, message: Message, text: str, *, query: str) -> Passage:
        before, _, after = text.partition(query)
        return Passage(
            session_id=self._owner_and_session[1],
            title=None,
            message_id=message.id,
            role=message.role,
            created_at=0.0,
            snippet=(SnippetPiece(before), SnippetPiece(query, hit=True), SnippetPiece(after)),
        )


def message_text(message: Message) -> str:
    """A message in words."""
    return "\n\n".join(text for part in message.parts if (text := part_text(part)))
