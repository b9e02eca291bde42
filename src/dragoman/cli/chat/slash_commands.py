"""The slash commands of the interactive chat."""

from __future__ import annotations

import asyncio
import base64
import mimetypes
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from dragoman.cli.chat.session import ChatSession, new_session_id
from dragoman.cli.hub_client.client import HubClient
from dragoman.cli.hub_client.url_quoting import path_segment
from dragoman.cli.terminal import format_age, print_line, print_note, print_table
from dragoman.errors import BadRequest, DragomanError, NotFound
from dragoman.suggestions import suggest

MAX_ATTACHMENT = 5_000_000  # bytes of the files of one message: base64 makes 6.7 MB of them, of 8 MB
MAX_MODELS = 40  # lines of a list


Choices: TypeAlias = Literal["models", "agents", "sessions", "files"]


class QuitChat(Exception):
    """The user wants to leave the chat."""


class ChatCommand(NamedTuple):
    """A slash command: what it takes, what it does, the function, and what its argument may be."""

    argument: str
    help: str
    run: Callable[[ChatSession, str], Awaitable[None]]
    choices: Choices | None = None


async def begin_session(chat: ChatSession, _: str) -> None:
    """Begin a new session."""
    chat.open(new_session_id())
    print_note(f"session {chat.session}")


async def list_sessions(chat: ChatSession, _: str) -> None:
    """List the sessions of the caller."""
    await print_sessions(chat.client)


async def open_session(chat: ChatSession, id: str) -> None:
    """Continue a session."""
    if not id:
        raise BadRequest("/open needs the id of a session", hint="/sessions lists yours")
    chat.open(id)
    await print_session(chat)


async def choose_model(chat: ChatSession, name: str) -> None:
    """Answer with another model from now on; without a name as the hub is configured, and list the models."""
    models = await list_choices(chat, "models")
    if not name:
        for model in models[:MAX_MODELS]:
            print_line(model)
        if len(models) > MAX_MODELS:
            print_note(f"and {len(models) - MAX_MODELS} more; Tab completes them")
    chat.model = name or None
    unlisted = f" is not in the hub's list{suggest(name, models)}" if name and name not in models else ""
    print_note(f"model: {chat.model or 'as the hub is configured'}{unlisted}")


async def choose_agent(chat: ChatSession, name: str) -> None:
    """Let another agent answer from now on; without a name list the agents."""
    if not name:
        agents = (await chat.client.request("GET", "/api/agents"))["agents"]
        rows = [(agent["name"], agent["model"] or "-", agent["description"] or "-") for agent in agents]
        print_table(("AGENT", "MODEL", "WHAT IT DOES"), rows)
    chat.agent = name or None
    print_note(f"agent: {chat.agent or 'as the session has it'}")


async def stop_answer(chat: ChatSession, _: str) -> None:
    """Stop the answer that is active in the session, whoever asked for it."""
    with suppress(NotFound):  # nothing was sent yet
        await chat.client.stop(chat.session)
    print_note("nothing is being answered in this session now")


async def fork_session(chat: ChatSession, _: str) -> None:
    """Continue in a copy of the session; the session itself stays as it is."""
    messages = await chat.client.messages(chat.session)
    if not messages:
        raise BadRequest("there is nothing to fork yet", hint="send a message first")
    path = f"/api/sessions/{path_segment(chat.session)}/fork"
    forked = await chat.client.request("POST", path, body={"messageId": messages[-1].id})
    chat.open(forked["id"])
    print_note(f"session {chat.session} continues from here; the other one stays as it is")


async def print_cost(chat: ChatSession, _: str) -> None:
    """Print what the session has cost, by model."""
    report = await chat.client.usage({"session": chat.session, "group_by": "model"})
    rows = [
        (
            row["group"]["model_served"] or "-",
            str(row["calls"]),
            str(row["usage"].get("inputTokens", "-")),
            str(row["usage"].get("outputTokens", "-")),
            "unknown" if row["cost"] is None else f"${row['cost']:.4f}",
        )
        for row in report["rows"]
    ]
    if not rows:
        print_note("this session has asked no model yet")
        return
    print_table(("MODEL", "REQUESTS", "TOKENS IN", "TOKENS OUT", "COST"), rows)


async def attach_file(chat: ChatSession, name: str) -> None:
    """Send a file with the next message."""
    for part in await asyncio.to_thread(add_attachments, chat, [name]):
        print_note(f"{part['filename']} ({part['mediaType']}) goes with the next message")


def add_attachments(chat: ChatSession, names: Sequence[str]) -> list[dict[str, str]]:
    """Add files to the next message; return their parts. NotFound, BadRequest."""
    added = []
    for name in names:
        taken = sum(file_size(part) for part in chat.attachments)
        added.append(read_attachment(name, MAX_ATTACHMENT - taken))
        chat.attachments.append(added[-1])
    return added


def file_size(part: Mapping[str, str]) -> int:
    """Return the bytes of the file in a part, which are in base64 after the comma of its URL."""
    encoded = part["url"].partition(",")[2]
    return len(encoded) // 4 * 3 - encoded[-2:].count("=")


def read_attachment(name: str, limit: int) -> dict[str, str]:
    """Return the part of a message with a file. NotFound; BadRequest above `limit` bytes."""
    path = Path(name).expanduser()
    if not path.is_file():
        raise NotFound(f"there is no file {name!r}", hint="/attach PATH sends a file with the next message")
    if path.stat().st_size > limit:
        raise BadRequest(f"the files of one message have {MAX_ATTACHMENT // 1_000_000} MB at most")
    media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    data = base64.b64encode(path.read_bytes()).decode()
    url = f"data:{media_type};base64,{data}"
    return {"type": "file", "mediaType": media_type, "filename": path.name, "url": url}


async def print_help(_: ChatSession, __: str) -> None:
    """List the commands."""
    lines = [f"  {f'{name} {each.argument}'.strip():<16}{each.help}" for name, each in COMMANDS.items()]
    keys = (
        "Ctrl-C while the hub answers stops the answer; at the prompt, twice, it leaves.\n"
        "Tab completes; Alt-Enter begins a new line of the message; up and Ctrl-R find earlier ones."
    )
    print_note("commands:\n" + "\n".join([*lines, keys]))


async def quit_chat(_: ChatSession, __: str) -> None:
    """Leave."""
    raise QuitChat


COMMANDS: Mapping[str, ChatCommand] = {
    "/new": ChatCommand("", "begin a new session", begin_session),
    "/sessions": ChatCommand("", "list your sessions", list_sessions),
    "/open": ChatCommand("ID", "continue one of them", open_session, "sessions"),
    "/model": ChatCommand(
        "NAME", "answer with this model from now on; without a name list them", choose_model, "models"
    ),
    "/agent": ChatCommand(
        "NAME", "let this agent answer from now on; without a name list them", choose_agent, "agents"
    ),
    "/attach": ChatCommand("FILE", "send a file with the next message", attach_file, "files"),
    "/stop": ChatCommand("", "stop what is being answered in this session", stop_answer),
    "/fork": ChatCommand("", "continue in a copy of this session", fork_session),
    "/cost": ChatCommand("", "what this session has cost", print_cost),
    "/help": ChatCommand("", "this list", print_help),
    "/quit": ChatCommand("", "leave (Ctrl-D does it too)", quit_chat),
}
ALIASES = {"/exit": "/quit"}


async def list_choices(chat: ChatSession, choices: Choices) -> Sequence[str]:
    """Return the models, agents or sessions that a command may name; none if the hub returns an error."""
    try:
        match choices:
            case "models":
                models: list[str] = (await chat.client.request("GET", "/api/models"))["models"]
                return models
            case "agents":
                agents = (await chat.client.request("GET", "/api/agents"))["agents"]
                return [str(agent["name"]) for agent in agents]
            case "sessions":
                return [str(each["id"]) for each in await chat.client.sessions(limit=20)]
            case "files":
                return ()
    except DragomanError:
        return ()


async def run_command(chat: ChatSession, line: str) -> None:
    """Run a line that begins with a slash. BadRequest for an unknown command."""
    word, _, rest = line.partition(" ")
    command = COMMANDS.get(ALIASES.get(word, word))
    if command is None:
        raise BadRequest(f"there is no command {word}{suggest(word, COMMANDS)}", hint="/help lists them")
    await command.run(chat, rest.strip())


async def print_session(chat: ChatSession) -> None:
    """Print the state of the session, and follow the active answer."""
    try:
        stored = await chat.client.session(chat.session)
    except NotFound:
        print_note(f"session {chat.session} is new")
        return
    messages = await chat.client.messages(chat.session)
    print_note(f"session {chat.session}: {stored['title'] or 'no title'}, {len(messages)} messages")
    chat.restore_pending(messages)
    if stored["running"]:
        print_note("an answer is active:")
        await chat.resume()


async def print_sessions(client: HubClient) -> None:
    """Print the sessions of the caller, the last changed first."""
    found = await client.sessions(limit=20)
    if not found:
        print_note("you have no sessions yet")
        return
    rows = [(each["id"], format_age(each["updatedAt"]), each["title"] or "-") for each in found]
    print_table(("ID", "CHANGED", "TITLE"), rows)
