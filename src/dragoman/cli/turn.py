"""Turns: one for a script, or as many as somebody at a keyboard wants."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import msgspec
import typer

from dragoman import events
from dragoman.cli.client import HubClient
from dragoman.cli.prompt import Prompt
from dragoman.cli.screen import Screen
from dragoman.cli.talk import End, Talk
from dragoman.cli.terminal import console, note

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
