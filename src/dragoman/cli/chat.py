"""`dragoman chat`: a talk in the terminal, or one turn for a script."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from dragoman.cli.options import DEFAULT_HUB, AsJson, Hub, Key
from dragoman.cli.terminal import examples

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
    from dragoman.cli.turn import Place, converse, turn  # late: drawing and HTTP take 0.2 s, --help none

    place = Place(hub or DEFAULT_HUB, key, session=session, model=model)
    if message is None and sys.stdin.isatty():
        converse(place)
        return
    text = sys.stdin.read() if message is None else message
    if not text.strip():
        raise typer.BadParameter("there is no message: neither as an argument nor on stdin")
    raise typer.Exit(turn(place, text, as_json=json))
