"""Message search: find and read earlier messages of sessions, including those a model no longer sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from dragoman.errors import NotFound
from dragoman.messages import Message, Role
from dragoman.operations.results.part_text import part_text

MatchKind: TypeAlias = Literal["all", "some", "text"]
"""Whether the hits contain all words, some of them since no message has all, or the literal query."""


class SnippetPiece(msgspec.Struct, frozen=True):
    """A piece of a snippet; `hit` is True for matching text."""

    text: str
    hit: bool = False


class Passage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A matching message: its time (unix seconds) and the text around the hit."""

    session_id: str
    title: str | None
    message_id: str
    role: Role
    created_at: float
    snippet: tuple[SnippetPiece, ...]


class IndexingProgress(msgspec.Struct, frozen=True):
    """The progress of the search index, in messages; each search indexes more."""

    done: int
    left: int


class MessageSearchResult(msgspec.Struct, frozen=True):
    """The matches, best first, each message once. With `indexing` the result is incomplete."""

    matched: MatchKind
    passages: tuple[Passage, ...] = ()
    indexing: IndexingProgress | None = None


class MessageText(msgspec.Struct, frozen=True):
    """A message as plain text."""

    role: Role
    created_at: float
    text: str


class MessageSearch(Protocol):
    """Searches and reads the messages of sessions."""

    async def search(
        self,
        query: str,
        *,
        owner: str,
        session_id: str | None = None,
        truncated_only: bool = False,
        limit: int = 20,
    ) -> MessageSearchResult:
        """Search all sessions of the owner, or one.

        `truncated_only`: only messages that the session's model no longer sees; before any truncation,
        those before the last question.
        """
        ...

    async def read(self, session_id: str, message_id: str, *, owner: str) -> MessageText:
        """Return a message of one of the owner's sessions. Raises NotFound, also for another owner's."""
        ...


class MemoryMessageSearch:
    """The messages of one session in memory, searched for literal text."""

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
        last = max(
            (index for index, message in enumerate(self._messages) if message.role == "user"), default=0
        )
        messages = self._session_messages(owner, session_id)[: last if truncated_only else None]
        matches = [
            (message, text) for message in messages for text in [message_text(message)] if query in text
        ]
        passages = [self._make_passage(message, text, query=query) for message, text in matches[:limit]]
        return MessageSearchResult("text", tuple(passages))

    async def read(self, session_id: str, message_id: str, *, owner: str) -> MessageText:
        for message in self._session_messages(owner, session_id):
            if message.id == message_id:
                return MessageText(message.role, 0.0, message_text(message))
        raise NotFound(f"There is no message {message_id!r} in this session.")

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
    """Return a message as plain text."""
    return "\n\n".join(text for part in message.parts if (text := part_text(part)))
