"""`dragoman chat`: an interactive chat in the terminal, or one turn for a script."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
import typer

from dragoman import events
from dragoman.cli.chat.commands import add_attachments
from dragoman.cli.chat.renderer import EventRenderer
from dragoman.cli.chat.renderer_choice import make_renderer
from dragoman.cli.chat.session import ChatSession, TurnEnd
from dragoman.cli.completion import agent_names, model_names, session_ids
from dragoman.cli.hub_client.client import HubClient
from dragoman.cli.options import DEFAULT_HUB, AsJson, Hub, Key
from dragoman.cli.terminal import examples, make_console, print_note

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
            typer.echo(events.encode(event).decode())
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


EPILOG = examples(
    ("dragoman chat", "chat with the hub at http://127.0.0.1:8000"),
    ("dragoman chat --session trip", "continue a session, also during an answer"),
    ("dragoman chat 'What time is it in Lisbon?' > answer.txt", "one turn; stdout is the answer alone"),
    ("git diff | dragoman chat --model up/any-model", "the message from a pipe"),
    ("dragoman chat --attach invoice.pdf 'What is the total?'", "with a file"),
)


def chat(
    *,
    message: Annotated[
        str | None, typer.Argument(help="One message; without it an interactive chat starts.")
    ] = None,
    hub: Hub = None,
    key: Key = None,
    session: Annotated[
        str | None,
        typer.Option(metavar="ID", autocompletion=session_ids, help="The session; a new one by default."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(autocompletion=model_names, help="`provider/model`, instead of the hub's choice."),
    ] = None,
    agent: Annotated[
        str | None, typer.Option(autocompletion=agent_names, help="The agent that answers.")
    ] = None,
    attach: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="A file that goes with the first message. May be repeated."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Chat with a running hub.

    The answer streams; reasoning is dimmed, tool calls are shown as they happen. Ctrl-C stops the answer and
    not the program. With a message, or with a pipe as input, it is one turn: exit code 0 when it went well, 1
    when it failed, 130 when it was stopped.
    """

    place = ChatTarget(hub or DEFAULT_HUB, key, session=session, model=model, agent=agent, files=attach or ())
    if message is None and sys.stdin.isatty():
        asyncio.run(run_repl(place))
        return
    raise typer.Exit(run_turn(place, read_message(message), as_json=json))


def read_message(argument: str | None) -> str:
    """Return the message of the command line, else that of stdin. BadParameter when there is none."""
    is_piped = argument is None and not sys.stdin.isatty()
    text = sys.stdin.read() if is_piped else argument or ""
    if not text.strip():
        raise typer.BadParameter("no message was given; pass one as an argument or on stdin")
    return text
