"""`dragoman chat`: a talk in the terminal, or one turn for a script."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from dragoman import events
from dragoman.cli.client import HubClient
from dragoman.cli.options import DEFAULT_HUB, AsJson, Hub, Key
from dragoman.cli.prompt import Prompt
from dragoman.cli.screen import Screen
from dragoman.cli.talk import End, Talk
from dragoman.cli.terminal import console, examples, note

# ---- Turns: one for a script, or as many as somebody at a keyboard wants.

CODES: dict[End, int] = {"done": 0, "failed": 1, "stopped": 130}


class Place(msgspec.Struct, frozen=True):
    """Where to talk: a hub, its key, a session of it and the model that is to answer."""

    hub: str
    key: str | None = None
    session: str | None = None
    model: str | None = None


class Lines(Screen):
    """A screen for programs: each event is a line of JSON."""

    def draw(self, batch: Sequence[events.Event]) -> None:
        for event in batch:
            typer.echo(events.encode(event).decode())
            self.failed = self.failed or isinstance(event, events.ErrorEvent)
            if isinstance(event, events.Abort | events.Finish):
                self.reason = self.reason or ("aborted" if isinstance(event, events.Abort) else "stop")

    def remark(self, words: str, style: str = "dim") -> None:
        """Nothing beside the events."""


def screen() -> Screen:
    """The answer on stdout, all about it on stderr."""
    return Screen(console(sys.stdout), console(sys.stderr))


def lines() -> Screen:
    """Events as JSON lines on stdout."""
    return Lines(console(sys.stdout), console(sys.stderr))


def turn(place: Place, text: str, *, as_json: bool) -> int:
    """Say one thing, draw the answer, give the exit code."""
    return CODES[asyncio.run(_turn(place, text, as_json=as_json))]


async def _turn(place: Place, text: str, *, as_json: bool) -> End:
    async with HubClient(place.hub, place.key) as client:
        talk = Talk(client, lines if as_json else screen, session=place.session, model=place.model)
        end = await talk.say(text)
        if not (as_json or place.session):
            note(f"session {talk.session}; `dragoman chat --session {talk.session}` goes on")
        return end


def converse(place: Place) -> None:
    """Talk until the user leaves."""
    Prompt(place.hub, place.key, screens=screen).run(place.session, place.model)


EPILOG = examples(
    ("dragoman chat", "talk to the hub at http://127.0.0.1:8000"),
    ("dragoman chat --session trip", "go on where you were, also in mid-answer"),
    ("dragoman chat 'What time is it in Lisbon?' > answer.txt", "one turn; stdout is the answer alone"),
    ("git diff | dragoman chat --model up/any-model", "the message from a pipe"),
)


def chat(
    message: Annotated[str | None, typer.Argument(help="One message; without it a talk begins.")] = None,
    *,
    hub: Hub = None,
    key: Key = None,
    session: Annotated[
        str | None, typer.Option(metavar="ID", help="The session; a new one by default.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="`provider/model`, instead of the hub's choice.")] = None,
    json: AsJson = False,
) -> None:
    """Talk to a running hub.

    The answer streams; reasoning is dimmed, tool calls are shown as they happen. Ctrl-C stops the answer and
    not the program. With a message, or with a pipe as input, it is one turn: exit code 0 when it went well, 1
    when it failed, 130 when it was stopped.
    """

    place = Place(hub or DEFAULT_HUB, key, session=session, model=model)
    if message is None and sys.stdin.isatty():
        converse(place)
        return
    text = sys.stdin.read() if message is None else message
    if not text.strip():
        raise typer.BadParameter("there is no message: neither as an argument nor on stdin")
    raise typer.Exit(turn(place, text, as_json=json))
