"""`dragoman sessions`: read, export and search conversations, in the data folder or at a running hub."""

from __future__ import annotations

import asyncio
import mmap
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dragoman.cli.completion import session_ids
from dragoman.cli.hub_client.connect import HubTarget, connect, run_with_client
from dragoman.cli.options import DEFAULT_DATA, DEFAULT_HUB, AsJson, Data, Hub, Key
from dragoman.cli.terminal import (
    examples,
    format_age,
    make_console,
    print_json,
    print_line,
    print_note,
    print_table,
    strip_controls,
)
from dragoman.errors import BadRequest, NotFound
from dragoman.session_ids import client_session_id

if TYPE_CHECKING:
    from dragoman.cli.hub_client.client import HubClient
    from dragoman.messages import Message

sessions = typer.Typer(no_args_is_help=True, help="Sessions: stored conversations.")
Id = Annotated[
    str | None,
    typer.Argument(autocompletion=session_ids, help="The session; the last changed one when left out."),
]


@sessions.command(
    "list",
    epilog=examples(
        ("dragoman sessions list", "those in .dragoman, of all owners"),
        ("dragoman sessions list --hub http://127.0.0.1:8000 --json", "yours, from a running hub"),
        ("dragoman sessions list --label travel --archived", "archived ones with a label"),
    ),
)
def list_sessions(
    *,
    data: Data = DEFAULT_DATA,
    hub: Hub = None,
    key: Key = None,
    label: Annotated[str | None, typer.Option(metavar="NAME", help="Only with this label.")] = None,
    archived: Annotated[bool, typer.Option("--archived", help="Archived ones instead.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Maximum number of rows.")] = 50,
    json: AsJson = False,
) -> None:
    """List sessions, the last changed first."""
    filters = {} if label is None else {"label": label}
    filters |= {"archived": "true"} if archived else {}
    found = run_with_client(HubTarget(hub, key, data), lambda client: client.sessions(limit, filters=filters))
    if json:
        print_json({"sessions": found})
        return
    if not found:
        print_note("no session matches" if filters else "there is no session yet; `dragoman chat` begins one")
        return
    rows: list[tuple[str, ...]] = [
        (
            client_session_id(each["id"]),
            format_age(each["updatedAt"]),
            each.get("owner", "you"),
            each["model"] or "-",
            title_cell(each),
        )
        for each in found
    ]
    headings: tuple[str, ...] = ("ID", "CHANGED", "OWNER", "MODEL", "TITLE")
    if len({row[2] for row in rows}) > 1:  # two owners can use one id; the hub's tells them apart
        headings = (*headings, "HUB ID")
        rows = [(*row, str(each.get("hubId", each["id"]))) for row, each in zip(rows, found, strict=True)]
    print_table(headings, rows)


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
    """Show a session: messages, tool calls, results and usage."""
    session, messages = _read(HubTarget(hub, key, data), id)
    if json:
        print_json(session_to_json(session, messages))
        return
    from dragoman.cli.chat.transcript import print_transcript  # late: drawing takes 0.1 s

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
    format: Annotated[Literal["json", "markdown", "jsonl", "html"], typer.Option()] = "json",
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="A file instead of stdout.")] = None,
) -> None:
    """Export a whole session; as jsonl, which can be imported, and as html from a running hub only."""
    if format in ("jsonl", "html"):
        asyncio.run(_export(HubTarget(hub, key, data), id, format=format, output=output))
        return
    from dragoman.cli.chat.transcript import to_markdown  # late: messages and retelling take 0.1 s

    session, messages = _read(HubTarget(hub, key, data), id)
    text = to_json_text(session, messages) if format == "json" else to_markdown(session, messages)
    if output is None:
        sys.stdout.write(strip_controls(text) if sys.stdout.isatty() else text)
        return
    output.write_text(text, encoding="utf-8")
    print_note(f"{len(messages)} messages of {session['id']} are in {output}")


@sessions.command(
    "import",
    epilog=examples(
        ("dragoman sessions import trip.jsonl --id trip", "what `export --format jsonl` wrote"),
        ("dragoman sessions import conversation.json", "an export of OpenCode or ChatGPT"),
    ),
)
def import_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="The file.")],
    *,
    hub: Hub = DEFAULT_HUB,
    key: Key = None,
    id: Annotated[str | None, typer.Option(metavar="ID", help="The id of the new session.")] = None,
    json: AsJson = False,
) -> None:
    """Create a session from a file, or one for each of its conversations, in a running hub."""
    with open_content(file) as content:
        created = run_with_client(HubTarget(hub, key), lambda client: client.import_sessions(content, id=id))
    if json:
        print_json(created)
        return
    existing = created.get("existing", [])
    for session in created.get("sessions", [created]):
        print_line(session["id"])
    print_note(f"{created['messages']} messages were imported")
    if existing:
        print_note(f"{len(existing)} conversations had been imported before")


@contextmanager
def open_content(path: Path) -> Iterator[memoryview]:
    """Open the content of a file, which is read as it is sent."""
    if path.stat().st_size == 0:
        yield memoryview(b"")
        return
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        memoryview(content) as view,
    ):
        yield view


@sessions.command(
    "label",
    epilog=examples(
        ("dragoman sessions label trip travel family", "adds two labels"),
        ("dragoman sessions label trip --remove travel", "takes one away"),
    ),
)
def label(
    id: Annotated[str, typer.Argument(metavar="ID", autocompletion=session_ids, help="The session.")],
    labels: Annotated[list[str] | None, typer.Argument(metavar="[LABEL]...", help="Labels to add.")] = None,
    *,
    hub: Hub = DEFAULT_HUB,
    key: Key = None,
    remove: Annotated[list[str] | None, typer.Option(metavar="LABEL", help="A label to remove.")] = None,
    json: AsJson = False,
) -> None:
    """Add labels to a session, or remove some, in a running hub; without either, print its labels."""
    added, removed = labels or [], set(remove or ())

    async def change(client: HubClient) -> dict[str, Any]:
        session = await client.session(id)
        if not added and not removed:
            return session
        found = [name for name in dict.fromkeys([*session["labels"], *added]) if name not in removed]
        return await client.change_session(id, {"labels": found})

    session = run_with_client(HubTarget(hub, key), change)
    if json:
        print_json(session)
        return
    for name in session["labels"]:
        print_line(name)
    if not session["labels"]:
        print_note(f"{session['id']} has no labels")


@sessions.command(
    "archive",
    epilog=examples(
        ("dragoman sessions archive trip", "it is not listed any more, and still there"),
        ("dragoman sessions archive trip --undo", "it is listed again"),
    ),
)
def archive(
    id: Annotated[str, typer.Argument(metavar="ID", autocompletion=session_ids, help="The session.")],
    *,
    hub: Hub = DEFAULT_HUB,
    key: Key = None,
    undo: Annotated[bool, typer.Option("--undo", help="List it again instead.")] = False,
    json: AsJson = False,
) -> None:
    """Archive a session in a running hub: lists leave it out, searches find it."""
    target = HubTarget(hub, key)
    session = run_with_client(target, lambda client: client.change_session(id, {"archived": not undo}))
    if json:
        print_json(session)
        return
    print_line(f"{session['id']} is {'archived' if session['archived'] else 'listed again'}")


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
    limit: Annotated[int, typer.Option(min=1, max=100, help="Maximum number of messages.")] = 20,
    json: AsJson = False,
) -> None:
    """Search messages, best match first: texts, tool inputs and results, file names."""
    query = " ".join(words)
    found = asyncio.run(_search(HubTarget(hub, key, data), query, session=session, limit=limit))
    if json:
        print_json(found)
        return
    if not found["found"]:
        print_note(f"nothing holds {query[:80]!r}")
        return
    if found["matched"] == "some":
        print_note("nothing holds all these words; this is what holds some of them")
    from dragoman.cli.chat.transcript import print_passage  # late: drawing takes 0.1 s

    out = make_console(sys.stdout)
    for passage in found["found"]:
        print_passage(passage, out=out)


async def _export(target: HubTarget, id: str | None, *, format: str, output: Path | None) -> None:
    """Write a session to a file or to stdout as it arrives."""
    async with connect(target) as client:
        session = await _find(client, id)
        async with aclosing(client.export_session(session["id"], format)) as chunks:
            first = await anext(chunks, b"")  # before the file is opened: a refusal leaves it as it is
            await _write(output, chunks, first=first)
    if output is not None:
        print_note(f"{session['id']} is in {output}")


async def _write(output: Path | None, chunks: AsyncIterator[bytes], *, first: bytes) -> None:
    with nullcontext(sys.stdout.buffer) if output is None else output.open("wb") as out:
        out.write(first)
        async for chunk in chunks:
            out.write(chunk)


async def _search(target: HubTarget, words: str, *, session: str | None, limit: int) -> dict[str, Any]:
    """Search, and repeat the search until the index covers all messages."""
    if not words.strip():
        raise BadRequest("There is nothing to search for.", hint="give some words")
    async with connect(target) as client:
        while True:
            results = await client.search(words, session=session, limit=limit)
            progress = results.pop("indexing", None)
            if progress is None:
                return results
            total = progress["done"] + progress["left"]
            print_note(f"{progress['done']} of {total} messages are indexed; the first search takes longer")


def _read(target: HubTarget, id: str | None) -> tuple[dict[str, Any], list[Message]]:
    """Return a session and its messages; the last changed session without an id. NotFound."""

    async def read(client: HubClient) -> tuple[dict[str, Any], list[Message]]:
        session = await _find(client, id)
        return session, await client.messages(session["id"])

    return run_with_client(target, read)


async def _find(client: HubClient, id: str | None) -> dict[str, Any]:
    """Return a session; the last changed one without an id. NotFound."""
    if id is not None:
        return await client.session(id)
    if newest := await client.sessions(limit=1):
        return newest[0]
    raise NotFound("There is no session yet.", hint="`dragoman chat` starts one")


def session_to_json(session: dict[str, Any], messages: list[Message]) -> dict[str, Any]:
    """Return a session with its messages as JSON values."""
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
