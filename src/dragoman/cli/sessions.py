"""`dragoman sessions`: what was said, from the data folder or from a running hub."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import msgspec
import typer

from dragoman.cli.client import HubClient
from dragoman.cli.keys import require_data_folder
from dragoman.cli.options import DEFAULT_DATA, AsJson, Data, Hub, Key
from dragoman.cli.terminal import examples, format_age, make_console, print_json, print_note, print_table
from dragoman.errors import BadRequest, NotFound
from dragoman.identity import LOCAL
from dragoman.messages import Message
from dragoman.operations.message_search import IndexingProgress
from dragoman.store.sessions import Session
from dragoman.store.store import Store

if TYPE_CHECKING:
    from dragoman.messages import Message


# ---- The archive: sessions and what was said in them, read from a data folder or from a running hub.


class Archive(Protocol):
    """Where sessions are kept; a session has the keys of `GET /api/sessions/{id}`."""

    async def sessions(self, limit: int = 50) -> list[dict[str, Any]]: ...

    async def session(self, id: str) -> dict[str, Any]: ...

    async def messages(self, id: str) -> list[Message]: ...

    async def search(self, query: str, *, session: str | None = None, limit: int = 20) -> dict[str, Any]: ...


class Folder:
    """The sessions of all owners in a data folder, also while a hub runs there."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def sessions(self, limit: int = 50) -> list[dict[str, Any]]:
        """The last changed first."""
        found = [
            each
            for owner in await self._owners()
            for each in await self._store.sessions.list(owner, limit=limit)
        ]
        newest = sorted(found, key=lambda session: session.updated_at, reverse=True)[:limit]
        return [await self._shown(session) for session in newest]

    async def session(self, id: str) -> dict[str, Any]:
        """NotFound when there is none of this id."""
        found = await self._store.sessions.get(id)
        if found is None:
            raise NotFound(f"there is no session {id!r}", hint="`dragoman sessions list` shows them")
        return await self._shown(found)

    async def messages(self, id: str) -> list[Message]:
        """What was said, as far as it is written down."""
        return list(await self._store.messages.list(id))

    async def search(self, query: str, *, session: str | None = None, limit: int = 20) -> dict[str, Any]:
        """What was said, as `GET /api/search` tells it, with the owners; the best of each one's, in turn."""
        owners = await self._owners() if session is None else [(await self.session(session))["owner"]]
        answers = [
            (owner, await self._store.history.search(query, owner=owner, session_id=session, limit=limit))
            for owner in owners
        ]
        there = [found.matched for _, found in answers if found.passages]
        matched = next((way for way in ("all", "some") if way in there), "text")
        held = [(owner, found.passages) for owner, found in answers if found.matched == matched]
        ranked = [(rank, owner, each) for owner, found in held for rank, each in enumerate(found)]
        best = sorted(ranked, key=lambda place: place[:2])[:limit]
        told = [{**msgspec.to_builtins(passage), "owner": owner} for _, owner, passage in best]
        return {"matched": matched, "found": told, **unfinished([found.indexing for _, found in answers])}

    async def _owners(self) -> list[str]:
        return sorted({LOCAL.owner, *(key.owner for key in await self._store.keys.list())})

    async def _shown(self, session: Session) -> dict[str, Any]:
        return {
            "id": session.id,
            "owner": session.owner,
            "title": session.title,
            "model": session.model,
            "agent": session.agent,
            "maxSteps": session.max_steps,
            "createdAt": session.created_at,
            "updatedAt": session.updated_at,
            "running": await self._store.runs.get_active(session.id) is not None,
        }


def unfinished(indexing: Sequence[IndexingProgress | None]) -> dict[str, Any]:
    """What is said of indexing that is not done, of all owners together."""
    there = [each for each in indexing if each is not None]
    if not there:
        return {}
    return {"indexing": {"done": sum(each.done for each in there), "left": sum(each.left for each in there)}}


@asynccontextmanager
async def opened(hub: str | None, key: str | None, *, data: Path) -> AsyncIterator[Archive]:
    """The archive of a hub when one is named, else that of the data folder."""
    if hub:
        async with HubClient(hub, key) as client:
            yield client
    else:
        async with await Store.open(require_data_folder(data), exclusive=False) as store:
            yield Folder(store)


async def pick(archive: Archive, id: str | None) -> dict[str, Any]:
    """The session of this id, or the last changed one. NotFound."""
    if id is not None:
        return await archive.session(id)
    found: Sequence[dict[str, Any]] = await archive.sessions(limit=1)
    if not found:
        raise NotFound("there is no session yet", hint="`dragoman chat` begins one")
    return found[0]


sessions = typer.Typer(no_args_is_help=True, help="Sessions: what was said, and how it was made.")
Id = Annotated[str | None, typer.Argument(help="The session; the last changed one when left out.")]


@sessions.command(
    "list",
    epilog=examples(
        ("dragoman sessions list", "those in .dragoman, of all owners"),
        ("dragoman sessions list --hub http://127.0.0.1:8000 --json", "yours, from a running hub"),
    ),
)
def list_sessions(
    *,
    data: Data = DEFAULT_DATA,
    hub: Hub = None,
    key: Key = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many at most.")] = 50,
    json: AsJson = False,
) -> None:
    """List sessions, the last changed first."""
    found = asyncio.run(_list(hub, key, data=data, limit=limit))
    if json:
        print_json({"sessions": found})
        return
    if not found:
        print_note("there is no session yet; `dragoman chat` begins one")
        return
    rows = [
        (
            each["id"],
            format_age(each["updatedAt"]),
            each.get("owner", "you"),
            each["model"] or "-",
            title_cell(each),
        )
        for each in found
    ]
    print_table(("ID", "CHANGED", "OWNER", "MODEL", "TITLE"), rows)


@sessions.command(
    "show",
    epilog=examples(
        ("dragoman sessions show", "the last one"),
        ("dragoman sessions show trip --json", "its settings and messages"),
    ),
)
def show(
    id: Id = None, *, data: Data = DEFAULT_DATA, hub: Hub = None, key: Key = None, json: AsJson = False
) -> None:
    """Read a session: messages, tool calls, what they gave, and what the answers took."""
    session, messages = asyncio.run(_read(hub, key, data=data, id=id))
    if json:
        print_json(session_to_json(session, messages))
        return
    from dragoman.cli.transcript import print_transcript  # late: drawing takes 0.1 s

    print_transcript(session, messages, out=make_console(sys.stdout))


@sessions.command(
    "export",
    epilog=examples(
        ("dragoman sessions export trip > trip.json", "as UIMessages, for programs and `useChat`"),
        ("dragoman sessions export trip --format markdown --output trip.md", "to read or to keep"),
    ),
)
def export(
    id: Id = None,
    *,
    data: Data = DEFAULT_DATA,
    hub: Hub = None,
    key: Key = None,
    format: Annotated[Literal["json", "markdown"], typer.Option()] = "json",
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="A file instead of stdout.")] = None,
) -> None:
    """Write a session out, whole."""
    from dragoman.cli.transcript import to_markdown  # late: messages and retelling take 0.1 s

    session, messages = asyncio.run(_read(hub, key, data=data, id=id))
    text = to_json_text(session, messages) if format == "json" else to_markdown(session, messages)
    if output is None:
        sys.stdout.write(text)
        return
    output.write_text(text, encoding="utf-8")
    print_note(f"{len(messages)} messages of {session['id']} are in {output}")


@sessions.command(
    "search",
    epilog=examples(
        ("dragoman sessions search hotel river", "what was said in all sessions"),
        ("dragoman sessions search hotel --session trip --json", "in one of them, for programs"),
    ),
)
def search(
    words: Annotated[list[str], typer.Argument(metavar="WORDS...", help="What to find.")],
    *,
    data: Data = DEFAULT_DATA,
    hub: Hub = None,
    key: Key = None,
    session: Annotated[str | None, typer.Option(metavar="ID", help="Only in this session.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many messages at most.")] = 20,
    json: AsJson = False,
) -> None:
    """Find what was said, the best first: texts, what tools took and gave, names of files."""
    query = " ".join(words)
    found = asyncio.run(_search(hub, key, data=data, query=query, session=session, limit=limit))
    if json:
        print_json(found)
        return
    if not found["found"]:
        print_note(f"nothing holds {query[:80]!r}")
        return
    if found["matched"] == "some":
        print_note("nothing holds all these words; this is what holds some of them")
    from dragoman.cli.transcript import print_passage  # late: drawing takes 0.1 s

    out = make_console(sys.stdout)
    for passage in found["found"]:
        print_passage(passage, out=out)


async def _search(
    hub: str | None, key: str | None, *, data: Path, query: str, session: str | None, limit: int
) -> dict[str, Any]:

    if not query.strip():
        raise BadRequest("there is nothing to look for", hint="say some words")
    async with opened(hub, key, data=data) as archive:
        while True:
            found = await archive.search(query, session=session, limit=limit)
            told = found.pop("indexing", None)
            if told is None:
                return found
            every = told["done"] + told["left"]
            print_note(f"{told['done']} of {every} messages are indexed; the first search takes longer")


async def _list(hub: str | None, key: str | None, *, data: Path, limit: int) -> list[dict[str, Any]]:

    async with opened(hub, key, data=data) as archive:
        return await archive.sessions(limit=limit)


async def _read(
    hub: str | None, key: str | None, *, data: Path, id: str | None
) -> tuple[dict[str, Any], list[Message]]:

    async with opened(hub, key, data=data) as archive:
        session = await pick(archive, id)
        return session, await archive.messages(session["id"])


def session_to_json(session: dict[str, Any], messages: list[Message]) -> dict[str, Any]:
    """A session with its messages, as JSON values."""
    from dragoman.messages import to_json  # late: as above

    return {**session, "messages": [to_json(message) for message in messages]}


def to_json_text(session: dict[str, Any], messages: list[Message]) -> str:
    import msgspec  # late: as above

    return (
        msgspec.json.format(msgspec.json.encode(session_to_json(session, messages)), indent=2).decode() + "\n"
    )


def title_cell(session: dict[str, Any]) -> str:
    running = " (answering)" if session["running"] else ""
    return f"{session['title'] or '-'}{running}"
