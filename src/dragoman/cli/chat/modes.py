"""One turn with a hub for a script, or an interactive chat with it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence

import msgspec
import typer

from dragoman import events
from dragoman.cli.chat.renderer import EventRenderer
from dragoman.cli.chat.renderer_choice import make_renderer
from dragoman.cli.chat.session import ChatSession, TurnEnd
from dragoman.cli.chat.slash_commands import add_attachments
from dragoman.cli.hub_client.client import HubClient
from dragoman.cli.terminal import escape_controls, make_console, print_note

EXIT_CODES: dict[TurnEnd, int] = {"done": 0, "failed": 1, "stopped": 130}


class ChatTarget(msgspec.Struct, frozen=True):
    """The hub to chat with, its key, the session, the model and the agent."""

    hub: str
    key: str | None = None
    session: str | None = None
    model: str | None = None
    agent: str | None = None
    files: Sequence[str] = ()  # that go with the first message


class JsonLinesRenderer(EventRenderer):
    """Prints each event as a line of JSON, for programs."""

    def render(self, batch: Sequence[events.Event]) -> None:
        for event in batch:
            typer.echo(escape_controls(events.encode(event).decode()))
            self.failed = self.failed or isinstance(event, events.ErrorEvent)
            if isinstance(event, events.Abort | events.Finish):
                self.reason = self.reason or ("aborted" if isinstance(event, events.Abort) else "stop")

    def print_aside(self, words: str, style: str = "dim") -> None:
        """Print nothing: only events are printed."""


def make_json_renderer() -> EventRenderer:
    """Return a renderer that prints events as JSON lines to stdout."""
    return JsonLinesRenderer(make_console(sys.stdout), make_console(sys.stderr))


def run_turn(target: ChatTarget, text: str, *, as_json: bool) -> int:
    """Send one message, print the answer, return the exit code."""
    return EXIT_CODES[asyncio.run(_run_turn(target, text, as_json=as_json))]


async def _run_turn(target: ChatTarget, text: str, *, as_json: bool) -> TurnEnd:
    async with HubClient.over_http(target.hub, target.key) as client:
        talk = make_session(client, target, new_renderer=make_json_renderer if as_json else make_renderer)
        end = await talk.send(text)
        if not (as_json or target.session):
            print_note(f"session {talk.session}; `dragoman chat --session {talk.session}` continues it")
        return end


async def run_repl(target: ChatTarget) -> None:
    """Run the interactive chat until the user leaves."""
    # late: prompt-toolkit takes 0.1 s
    from dragoman.cli.chat.repl import ChatRepl, open_chat

    async with HubClient.over_http(target.hub, target.key) as client:
        chat = make_session(client, target, new_renderer=make_renderer)
        await open_chat(chat, url=target.hub, is_stored=target.session is not None)
        await ChatRepl(chat).run()


def make_session(
    client: HubClient, target: ChatTarget, *, new_renderer: Callable[[], EventRenderer]
) -> ChatSession:
    """Return the session of a target; its files go with the first message. NotFound, BadRequest."""
    chat = ChatSession(client, new_renderer, session=target.session, model=target.model, agent=target.agent)
    add_attachments(chat, target.files)
    return chat
